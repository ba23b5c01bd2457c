//! What of the process need not stay in memory. It frees no data.
#![allow(
    unsafe_code,
    reason = "madvise on our own code, which can always be read again from the file"
)]

use std::io;

/// One line of `/proc/self/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: usize,
    length: usize,
}

/// Takes the code that ran so far out of this process's resident memory; what is still needed comes back from the page
/// cache when it runs next, 64 KiB at a time.
///
/// Reading settings, making keys and building tables needs a lot of code that hardly runs again. Called now and then,
/// this keeps a proxy's resident code to what it uses, several MB less. Only code is touched (private mappings of files that can be
/// executed and not written): it has no changes that could be lost.
///
/// # Errors
/// Those of reading `/proc/self/maps`, and of `madvise`.
pub fn release_code() -> io::Result<()> {
    for mapping in code(&std::fs::read_to_string("/proc/self/maps")?) {
        // SAFETY: the range is a whole mapping of this process; its pages are unchanged pages of a file, so that
        // dropping them from the page table changes nothing that can be observed but the time of the next access.
        let done = unsafe {
            libc::madvise(
                mapping.start as *mut libc::c_void,
                mapping.length,
                libc::MADV_DONTNEED,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The mappings of code among those of a `/proc/PID/maps`.
fn code(maps: &str) -> Vec<Mapping> {
    maps.lines().filter_map(code_line).collect()
}

fn code_line(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?;
    let [_offset, _device, inode] = [fields.next()?, fields.next()?, fields.next()?];
    if permissions != "r-xp" || inode == "0" {
        return None;
    }
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    Some(Mapping {
        start,
        length: end.checked_sub(start)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_counts() {
        let maps = "\
55d000000000-55d000001000 r--p 00000000 fd:00 42 /usr/bin/weft-proxy
55d000001000-55d000003000 r-xp 00001000 fd:00 42 /usr/bin/weft-proxy
55d000003000-55d000004000 rw-p 00003000 fd:00 42 /usr/bin/weft-proxy
7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0 [vdso]
not a line
";
        let expected = Mapping {
            start: 0x55d0_0000_1000,
            length: 0x2000,
        };
        assert_eq!(code(maps), [expected]);
    }

    #[test]
    fn the_process_goes_on_with_less_resident_code() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find(|l| l.starts_with("RssFile:"));
            let kb = line.and_then(|l| l.split_ascii_whitespace().nth(1));
            kb.and_then(|kb| kb.parse::<u64>().ok()).unwrap()
        };
        // Much code runs to format and parse this.
        let before = resident();
        release_code().unwrap();
        assert!(
            resident() < before,
            "{} kB before, {} kB after",
            before,
            resident()
        );
    }
}
