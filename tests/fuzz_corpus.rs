//! Replays what fuzzing has found worth keeping, with all that the fuzz targets check. `fuzz/README.md` says how to fuzz.
#![allow(clippy::expect_used)] // so that a test fails where it fails

mod oracle;

use std::fs;
use std::path::Path;

/// Settings that reach all ways of joining: thresholds 1024, 0 and 3, linear and best.
const SETTINGS: [u8; 6] = [0, 1, 4, 8, 9, 12];

fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder);
    let paths = fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let files = paths.filter(|path| path.is_file());
    files.map(|path| (path.display().to_string(), fs::read(&path).expect("a file"))).collect()
}

fn check(name: &str, input: &[u8]) {
    println!("{name}"); // shown when it fails
    oracle::check(input);
}

#[test]
fn bodies() {
    let inputs = files("fuzz/body");
    assert!(inputs.len() > 100, "the corpus");
    for (name, input) in inputs {
        check(&name, &input);
    }
}

#[test]
fn conversations() {
    let inputs = files("fuzz/conversation");
    assert!(inputs.len() > 20, "the corpus");
    for (name, bytes) in inputs {
        check(&name, &oracle::conversation::input(&bytes));
    }
}

#[test]
fn small_bodies_under_many_settings() {
    for (name, body) in files("") {
        for settings in SETTINGS {
            check(&name, &[&[settings, 1, 40, 0], &body[..]].concat());
        }
    }
}
