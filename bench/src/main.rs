//! Starts the `weft-bench` program; what it does is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    weft_bench::main()
}
