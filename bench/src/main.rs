//! Starts the `weft-bench` program; what it does is in the library.

use std::process::ExitCode;

/// That of `weft` and `weft-proxy`, since services that are measured run in this program too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    weft_bench::main()
}
