//! The short ways of reading numbers agree with the exact ones, or decline.
#![allow(clippy::expect_used, clippy::panic)] // so that a test fails where it fails

use _native::scan::number::{id_of, log_prob_of, short_id, short_log_prob};
use proptest::prelude::*;

#[test]
fn ids() {
    for (text, id) in [
        ("0", Some(0)),
        ("7", Some(7)),
        ("151643", Some(151_643)),
        ("2147483647", Some(2_147_483_647)),
        ("2147483648", None),
        ("99999999999999999999", None),
        ("-0", None),
        ("-1", None),
        ("1.0", None),
        ("1e2", None),
        ("true", None),
        ("\"101\"", Some(101)),
        ("\"token_id:101\"", Some(101)),
        ("\"007\"", Some(7)),
        ("\"\"", None),
        ("\"token_id:\"", None),
        ("\" 1\"", None),
        ("\"1 \"", None),
        ("\"-1\"", None),
        ("\"2147483648\"", None),
        ("\"\\u0031\"", Some(1)),
        ("\"token_id:token_id:1\"", None),
        ("\"\u{661}\"", None),
    ] {
        assert_eq!(id_of(text.as_bytes()), id, "{text}");
    }
}

#[test]
fn log_probs() {
    for (text, bits) in [
        ("-0.0", Some((-0.0_f32).to_bits())),
        ("0.0", Some(0)),
        ("-1", Some((-1.0_f32).to_bits())),
        ("-9999", None),
        ("-9999.0", None),
        ("-9998.999", Some((-9998.999_f32).to_bits())),
        // The double nearest to it is -9999.
        ("-9998.99999999999999999", None),
        ("1e400", None),
        ("-1e39", None),
        ("1e-400", Some(0)),
        ("1e-45", Some(1)),
        ("3.4028235e38", Some(f32::MAX.to_bits())),
        ("3.4028236e38", None),
        ("-1.1920928955078125e-07", Some((-1.192_092_9e-7_f32).to_bits())),
    ] {
        assert_eq!(log_prob_of(text.as_bytes()).map(f32::to_bits), bits, "{text}");
    }
}

fn agrees(text: &str) -> Result<bool, TestCaseError> {
    let followed = format!("{text},{:32}", "");
    let Some((value, length)) = short_log_prob(followed.as_bytes()) else { return Ok(false) };
    prop_assert_eq!(length, text.len(), "{}", text);
    prop_assert_eq!(Some(value.to_bits()), log_prob_of(text.as_bytes()).map(f32::to_bits), "{}", text);
    Ok(true)
}

#[test]
fn what_servers_send_takes_the_short_way() {
    for text in ["-0.5", "0.0", "-0.12345678901234567", "-1.1920928955078125e-07", "-12.25", "-0.00012207031", "-1e-05"]
    {
        assert!(agrees(text).expect("equal"), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn short_log_probs_are_exact(text in "-?(0|[1-9][0-9]?)(\\.[0-9]{1,19})?([eE][-+]?[0-9]{1,3})?") {
        agrees(&text)?;
    }

    /// Whatever a byte is replaced with: what is no logprob in that shape doesn't take the short way.
    #[test]
    fn other_bytes_do_not_take_the_short_way(
        text in "-?(0|[1-9][0-9]?)\\.[0-9]{1,21}(e-[0-9]{1,2})?", at in 0..30_usize, byte in 0..=255_u8,
    ) {
        let mut followed = format!("{text},{:32}", "").into_bytes();
        let at = at % (text.len() + 1);
        followed[at] = byte;
        if let Some((value, length)) = short_log_prob(&followed) {
            let changed = std::str::from_utf8(&followed[..length]).expect("a number");
            prop_assert_eq!(followed[length], b',');
            let unsigned = changed.strip_prefix('-').unwrap_or(changed);
            let leading_zero = unsigned.len() > 1 && unsigned.starts_with('0') && unsigned.as_bytes()[1].is_ascii_digit();
            prop_assert!(!leading_zero, "{}", changed);
            prop_assert!(changed.bytes().all(|byte| b"0123456789.-e".contains(&byte)), "{}", changed);
            prop_assert_eq!(Some(value.to_bits()), log_prob_of(changed.as_bytes()).map(f32::to_bits), "{}", changed);
        }
    }

    /// Texts around the middle of two singles: where rounding twice could go wrong.
    #[test]
    fn middles_between_singles_are_exact(bits in 0x2000_0000..0x4600_0000_u32, nudge in -3..=3_i64, digits in 9..20_usize) {
        let middle = f64::midpoint(f64::from(f32::from_bits(bits)), f64::from(f32::from_bits(bits + 1)));
        let near = f64::from_bits(middle.to_bits().wrapping_add_signed(nudge));
        agrees(&format!("-{near}"))?;
        agrees(&format!("-{near:.digits$}"))?;
        agrees(&format!("-{near:e}"))?;
    }

    #[test]
    fn short_ids_are_exact(text in "0?[0-9]{1,12}", after in "[,\\] .e]") {
        let followed = format!("{text}{after}        ");
        if let Some((id, length)) = short_id(followed.as_bytes()) {
            prop_assert_eq!((length, after.as_str()), (text.len(), ","));
            prop_assert_eq!(Some(id), id_of(text.as_bytes()));
            prop_assert!(text == "0" || !text.starts_with('0'));
        }
    }
}
