//! Numbers out of bytes: token ids eight digits at a time, logprobs as `numpy.float32(float(text))` would read them.

/// The largest token id, and one of the two bounds of the rule `0 <= id < 2**31`.
pub const MAX_ID: i64 = (1 << 31) - 1;

const ZEROS: u64 = 0x3030_3030_3030_3030;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
/// A comma among bytes that are taken as digits.
const COMMA: u64 = 0x30 ^ 0x2C;

/// Eight bytes as digits, and the high bit of each byte that is none.
#[inline]
fn digits_of(bytes: [u8; 8]) -> (u64, u64) {
    let digits = u64::from_le_bytes(bytes) ^ ZEROS;
    // A byte above 9 carries into the high bit, or had it set.
    (digits, (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & HIGH_BITS)
}

/// How many bytes come before the first of these high bits; all eight if there is none.
#[inline]
fn count_before(others: u64) -> usize {
    (others.trailing_zeros() / 8) as usize
}

/// The value of eight bytes 0 to 9, the most significant lowest.
#[inline]
fn eight_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let high = (pairs & 0x0000_00FF_0000_00FF).wrapping_mul(0x000F_4240_0000_0064);
    let low = ((pairs >> 16) & 0x0000_00FF_0000_00FF).wrapping_mul(0x0000_2710_0000_0001);
    high.wrapping_add(low) >> 32
}

/// A token id that is written as a plain integer of at most seven digits and is followed by a comma: its value and its
/// length. None for all others, right or wrong.
#[inline]
#[must_use]
pub fn short_id(bytes: &[u8]) -> Option<(i64, usize)> {
    let (digits, others) = digits_of(*bytes.first_chunk()?);
    let count = count_before(others);
    let is_padded = digits << 56 == 0 && count > 1;
    if count == 0 || count == 8 || is_padded || (digits >> (8 * count)) & 0xFF != COMMA {
        return None;
    }
    // The most significant digit stands lowest: shifting up puts zeros before it.
    Some((eight_digits(digits << (64 - 8 * count)).cast_signed(), count))
}

/// The text of one element of an id array, as the sender wrote it: its id, if it is one.
///
/// A JSON integer without fraction or exponent, or a string that is wholly `(token_id:)?[0-9]+`, with `0 <= id < 2**31`
/// (`-0` is none).
#[must_use]
pub fn id_of(text: &[u8]) -> Option<i64> {
    if let [b'"', inner @ .., b'"'] = text {
        let inner = unescape(inner);
        return id_of_digits(inner.strip_prefix("token_id:").unwrap_or(&inner).as_bytes());
    }
    id_of_digits(text)
}

/// Make an element that has become too long shorter, of which [`id_of`] makes the same all the same: zeros before an id
/// don't count, and what is as long without them is no id, whatever follows.
pub(super) fn shorten(element: &mut Vec<u8>) {
    let digits = 1 + if element.starts_with(b"\"token_id:") { "token_id:".len() } else { 0 };
    let zeros = element.iter().skip(digits).take_while(|&&byte| byte == b'0').count();
    element.drain(digits..digits + zeros.saturating_sub(1));
}

fn id_of_digits(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() {
        return None;
    }
    let mut id = 0_i64;
    for &byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        id = id * 10 + i64::from(byte - b'0');
        if id > MAX_ID {
            return None;
        }
    }
    Some(id)
}

/// A logprob at or below this is vLLM's sentinel for minus infinity, judged on the double.
const SENTINEL: f64 = -9999.0;

/// The text of a JSON number as a logprob; None where it is unusable.
#[must_use]
pub fn log_prob_of(text: &[u8]) -> Option<f32> {
    let double: f64 = fast_float2::parse(text).ok()?;
    #[allow(clippy::cast_possible_truncation)] // the rounding that is asked for
    let single = double as f32;
    (double > SENTINEL && single.is_finite()).then_some(single)
}

/// A logprob in the shape that servers send, followed by a comma: its value and its length. None for all others, right
/// or wrong, and wherever a shortcut could round differently from [`log_prob_of`].
///
/// Digits behind the sixteenth place are left out, and the value is computed in three roundings (mantissa, power,
/// quotient), so it is within [`DOUBTFUL`] units in the last place of the true double. That double rounds to the same
/// single unless it lies that close to the middle between two singles, which is tested.
///
/// Logprobs differ in length, so that a branch for each part of them would often be predicted wrong.
#[inline]
#[must_use]
pub fn short_log_prob(bytes: &[u8]) -> Option<(f32, usize)> {
    let bytes = bytes.first_chunk::<LOG_PROB_WINDOW>()?;
    let negative = bytes[0] == b'-';
    let mut at = usize::from(negative);
    let mut whole = u64::from(bytes[at].wrapping_sub(b'0'));
    at += 1;
    if whole > 9 {
        return None;
    }
    // Two digits before the point are a rare logprob, but a leading zero is no JSON.
    if bytes[at] != b'.' && bytes[at].is_ascii_digit() {
        if whole == 0 {
            return None;
        }
        whole = whole * 10 + u64::from(bytes[at] - b'0');
        at += 1;
    }
    let mut mantissa = whole * 10_u64.pow(FRACTION_PLACES);
    if bytes[at] == b'.' {
        let (fraction, places) = fraction(bytes[at + 1..].first_chunk()?)?;
        mantissa += fraction;
        if places > 16 && mantissa < 1_000_000_000_000 {
            return None;
        }
        at += 1 + places;
    }
    let (power, length) = negative_exponent(*bytes[at..].first_chunk()?)?;
    at += length;
    if bytes[at] != b',' {
        return None;
    }
    Some((single(negative, mantissa.cast_signed(), *DIVISORS.get(power)?)?, at))
}

/// Bytes that a logprob in such a shape, and the comma behind it, are looked for in.
const LOG_PROB_WINDOW: usize = 36;
/// Places behind the point that count.
const FRACTION_PLACES: u32 = 16;
/// The divisors of a mantissa with so many places, by the exponent behind it.
const DIVISORS: [f64; 30] = [
    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34,
    1e35, 1e36, 1e37, 1e38, 1e39, 1e40, 1e41, 1e42, 1e43, 1e44, 1e45,
];

/// The first sixteen places behind a point, zeros in the place of those that are not there; and how many there are: at
/// least one, and less than 24.
#[inline]
fn fraction(bytes: &[u8; 24]) -> Option<(u64, usize)> {
    let [first, second, third] = *bytes.as_chunks::<8>().0 else { return None };
    let (digits, others) = digits_of(first);
    let places = eight_digits(up_to(digits, others)) * 100_000_000;
    if others != 0 {
        let count = count_before(others);
        return (count > 0).then_some((places, count));
    }
    let (digits, others) = digits_of(second);
    let places = places + eight_digits(up_to(digits, others));
    let (_, last) = digits_of(third);
    let (others, before) = if others == 0 { (last, 16) } else { (others, 8) };
    (others != 0).then_some((places, before + count_before(others)))
}

/// These digits up to the first that is none, and zeros from there on.
#[inline]
fn up_to(digits: u64, others: u64) -> u64 {
    let first_bits = others >> 7;
    digits & first_bits.wrapping_sub(1) & !first_bits
}

/// Of a negative exponent of one or two digits: its absolute value, and its length. Both are 0 if there is none.
#[inline]
fn negative_exponent(bytes: [u8; 4]) -> Option<(usize, usize)> {
    let [tens, ones] = [bytes[2].wrapping_sub(b'0'), bytes[3].wrapping_sub(b'0')];
    let is_there = bytes[0] == b'e';
    if is_there && (bytes[1] != b'-' || tens > 9) {
        return None;
    }
    let (power, length) = if ones > 9 { (tens, 3) } else { (tens.wrapping_mul(10).wrapping_add(ones), 4) };
    Some(if is_there { (usize::from(power), length) } else { (0, 0) })
}

/// So many units of a double may [`single`]'s quotient be off.
const DOUBTFUL: u64 = 1 << 14;

/// A quotient as a single, where rounding it twice gives what rounding the true value twice gives.
#[inline]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // the roundings that are accounted for
fn single(negative: bool, mantissa: i64, divisor: f64) -> Option<f32> {
    let double = mantissa as f64 / divisor;
    let sign = u32::from(negative) << 31;
    // Below, singles lose digits.
    if double < 1e-37 {
        return (mantissa == 0).then(|| f32::from_bits(sign));
    }
    // A double has 29 bits more than a single; their middle is where the rounding turns.
    let beyond = double.to_bits() & ((1 << 29) - 1);
    if beyond.wrapping_sub((1 << 28) - DOUBTFUL) <= 2 * DOUBTFUL {
        return None;
    }
    Some(f32::from_bits((double as f32).to_bits() | sign))
}

/// The inside of a JSON string as text; what is no character becomes U+FFFD.
#[must_use]
pub fn unescape(raw: &[u8]) -> String {
    if !raw.contains(&b'\\') {
        return String::from_utf8_lossy(raw).into_owned();
    }
    let mut text = String::new();
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        text.push_str(&String::from_utf8_lossy(&rest[..at]));
        let (character, length) = escaped(&rest[at..]);
        text.push(character);
        rest = &rest[(at + length).min(rest.len())..];
    }
    text.push_str(&String::from_utf8_lossy(rest));
    text
}

/// The character that an escape at the start of `bytes` stands for, and the escape's length.
fn escaped(bytes: &[u8]) -> (char, usize) {
    match bytes.get(1) {
        Some(b'u') => {
            let Some(first) = hex4(bytes.get(2..)) else { return (char::REPLACEMENT_CHARACTER, 6) };
            if let Some(character) = char::from_u32(first) {
                return (character, 6);
            }
            if first < 0xDC00
                && bytes.get(6..8) == Some(b"\\u")
                && let Some(second @ 0xDC00..=0xDFFF) = hex4(bytes.get(8..))
            {
                let joined = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                return (char::from_u32(joined).unwrap_or(char::REPLACEMENT_CHARACTER), 12);
            }
            (char::REPLACEMENT_CHARACTER, 6)
        }
        Some(b'b') => ('\u{8}', 2),
        Some(b'f') => ('\u{c}', 2),
        Some(b'n') => ('\n', 2),
        Some(b'r') => ('\r', 2),
        Some(b't') => ('\t', 2),
        Some(&other) => (char::from(other), 2),
        None => (char::REPLACEMENT_CHARACTER, 1),
    }
}

fn hex4(bytes: Option<&[u8]>) -> Option<u32> {
    let text = std::str::from_utf8(bytes?.get(..4)?).ok()?;
    u32::from_str_radix(text, 16).ok()
}
