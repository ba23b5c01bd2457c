//! The memory of one copying direction: taken when there is something to read, sized by what was read, given back
//! when idle.
//! It does not decide when a direction is idle.

use super::poll_read;
use std::cell::Cell;
use std::io;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncRead;

/// Sizes in bytes. Most connections never fill the first; a TLS record fits the second; the third is where larger reads
/// stop paying (performance.md, "copy loops").
pub(super) const SIZES: [usize; 3] = [4 * 1024, 16 * 1024, 64 * 1024];
/// Full reads in a row before the next larger size, and nearly empty ones before the next smaller.
const TREND: i8 = 2;

thread_local! {
    /// One spare buffer of each size for each thread, so that a direction that wakes often does not allocate each time.
    static SPARE: [Cell<Option<Box<[u8]>>>; 3] = const { [const { Cell::new(None) }; 3] };
}

/// Bytes that were read and not yet written. Holds memory only between [`Buffer::poll_fill`] and [`Buffer::release`].
#[derive(Debug, Default)]
pub(super) struct Buffer {
    data: Option<Box<[u8]>>,
    start: u32,
    end: u32,
    /// Index into [`SIZES`] of the next allocation.
    pub(super) class: u8,
    /// Positive: full reads in a row; negative: small ones.
    trend: i8,
}

impl Buffer {
    /// What is still to be written.
    pub(super) fn pending(&self) -> &[u8] {
        let range = self.start as usize..self.end as usize;
        self.data
            .as_deref()
            .and_then(|data| data.get(range))
            .unwrap_or(&[])
    }

    /// Forgets the first `n` pending bytes. A writer that claims more than it was given has taken all.
    pub(super) fn consume(&mut self, n: usize) {
        let n = n.min(self.pending().len());
        self.start += u32::try_from(n).expect("at most the largest size");
    }

    /// Reads once, when nothing is pending; the number of bytes, 0 at the reader's end.
    pub(super) fn poll_fill<R>(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut R,
    ) -> Poll<io::Result<usize>>
    where
        R: AsyncRead + Unpin,
    {
        debug_assert!(self.pending().is_empty(), "pending bytes would be lost");
        let size = SIZES[usize::from(self.class)];
        if self.data.as_ref().is_some_and(|data| data.len() != size) {
            self.release();
        }
        let class = self.class;
        let data = self.data.get_or_insert_with(|| take(class));
        let n = ready!(poll_read(cx, reader, data))?;
        self.start = 0;
        self.end = u32::try_from(n).expect("at most the largest size");
        self.adapt(n, size);
        Poll::Ready(Ok(n))
    }

    fn adapt(&mut self, read: usize, size: usize) {
        self.trend = match read {
            n if n == size => self.trend.max(0) + 1,
            n if n <= size / 4 => self.trend.min(0) - 1,
            _ => 0,
        };
        if self.trend >= TREND {
            self.class = (self.class + 1).min(SIZES.len() as u8 - 1);
            self.trend = 0;
        } else if self.trend <= -TREND {
            self.class = self.class.saturating_sub(1);
            self.trend = 0;
        }
    }

    /// Gives the memory back; nothing may be pending.
    pub(super) fn release(&mut self) {
        debug_assert!(self.pending().is_empty(), "pending bytes would be lost");
        (self.start, self.end) = (0, 0);
        let Some(data) = self.data.take() else { return };
        if let Some(class) = SIZES.iter().position(|size| *size == data.len()) {
            // What was spare before, if anything, is freed here. No thread-local any more: the thread is ending.
            let _ = SPARE.try_with(|spare| spare[class].set(Some(data)));
        }
    }

    /// Bytes of memory held now.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.data.as_ref().map_or(0, |data| data.len())
    }
}

fn take(class: u8) -> Box<[u8]> {
    let class = usize::from(class);
    SPARE
        .try_with(|spare| spare[class].take())
        .ok()
        .flatten()
        .unwrap_or_else(|| vec![0; SIZES[class]].into_boxed_slice())
}
