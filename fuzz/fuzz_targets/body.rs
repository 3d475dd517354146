//! Any bytes at all, read as an independent reading of them says: see `tests/oracle`.
#![no_main]

#[path = "../../tests/oracle/mod.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|input: &[u8]| oracle::check(input));
