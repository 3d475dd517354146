//! Conversations made of any bytes: see `tests/oracle/conversation.rs`.
#![no_main]

#[path = "../../tests/oracle/mod.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oracle::check(&oracle::conversation::input(bytes)));
