//! Counting what a program takes from its allocator, for measurements: no program that serves traffic uses it.
#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicU64, Ordering};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// An allocator that counts the calls that give memory out: a block that grows counts once more.
pub struct Counting<A>(pub A);

/// Blocks given out so far by a [`Counting`] that is the global allocator of this process.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
}

// SAFETY: every call is passed on as it is, so what holds for `A` holds for this.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is ours.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is ours.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is ours.
        unsafe { self.0.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is ours.
        unsafe { self.0.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;

    #[test]
    fn each_block_counts_once_and_again_when_it_grows() {
        let (counting, layout) = (Counting(System), Layout::new::<u64>());
        let before = allocations();
        // SAFETY: the layout has a size, and each block is given back with the layout it has.
        unsafe {
            let block = counting.alloc(layout);
            let block = counting.realloc(block, layout, 64);
            counting.dealloc(block, Layout::from_size_align_unchecked(64, layout.align()));
            counting.dealloc(counting.alloc_zeroed(layout), layout);
        }
        assert_eq!(allocations() - before, 3);
    }
}
