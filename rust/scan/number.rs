//! Numbers out of bytes: token ids eight digits at a time, logprobs as `numpy.float32(float(text))` would read them.

/// The largest token id, and one of the two bounds of the rule `0 <= id < 2**31`.
pub const MAX_ID: i64 = (1 << 31) - 1;

const ZEROS: u64 = 0x3030_3030_3030_3030;

/// The first digits of `bytes` (at most 8): their value, and how many there are.
#[inline]
fn leading_digits(bytes: [u8; 8]) -> (u64, usize) {
    let digits = u64::from_le_bytes(bytes) ^ ZEROS;
    // The high bit of each byte that is no digit: a byte above 9 carries into it, or had it set.
    let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
    let count = (others.trailing_zeros() / 8) as usize;
    if count == 0 {
        return (0, 0);
    }
    // The most significant digit stands lowest: shifting up puts zeros before it.
    (eight_digits(digits << (64 - 8 * count)), count)
}

/// The value of eight bytes 0 to 9, the most significant lowest.
#[inline]
fn eight_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let high = (pairs & 0x0000_00FF_0000_00FF).wrapping_mul(0x000F_4240_0000_0064);
    let low = ((pairs >> 16) & 0x0000_00FF_0000_00FF).wrapping_mul(0x0000_2710_0000_0001);
    high.wrapping_add(low) >> 32
}

/// A token id that is written as a plain integer of at most seven digits, and is followed by a comma, a bracket or white
/// space: its value, its length and that byte. None for all others, right or wrong.
#[inline]
#[must_use]
pub fn short_id(bytes: &[u8]) -> Option<(i64, usize, u8)> {
    let head = bytes.first_chunk::<8>()?;
    let (value, count) = leading_digits(*head);
    if count == 0 || count == 8 || (head[0] == b'0' && count > 1) {
        return None;
    }
    let next = head[count];
    // A point or an exponent makes another number of it.
    matches!(next, b',' | b']' | b' ' | b'\n' | b'\r' | b'\t').then(|| (value.cast_signed(), count, next))
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

/// Powers of ten, each the double nearest to it.
const POWERS: [f64; 46] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22, 1e23, 1e24, 1e25, 1e26, 1e27, 1e28, 1e29, 1e30, 1e31, 1e32, 1e33, 1e34, 1e35, 1e36, 1e37, 1e38, 1e39,
    1e40, 1e41, 1e42, 1e43, 1e44, 1e45,
];

/// A logprob in the shape that servers send, followed by another byte: its value, its length and that byte.
/// None for all others, right or wrong, and wherever a shortcut could round differently from [`log_prob_of`].
///
/// The value is computed in three roundings (mantissa, power, quotient), so it is within three units in the last place
/// of the true double. That double rounds to the same single unless it lies that close to the middle between two
/// singles, which is tested.
#[inline]
#[must_use]
pub fn short_log_prob(bytes: &[u8]) -> Option<(f32, usize, u8)> {
    let negative = bytes.first() == Some(&b'-');
    let start = usize::from(negative);
    let first = bytes.get(start)?.wrapping_sub(b'0');
    if first > 9 {
        return None;
    }
    let mut mantissa = u64::from(first);
    let mut at = start + 1;
    let mut next = *bytes.get(at)?;
    if next != b'.' {
        // Two digits before the point are a rare logprob, but a leading zero is no JSON.
        if next.is_ascii_digit() {
            if first == 0 {
                return None;
            }
            mantissa = mantissa * 10 + u64::from(next - b'0');
            at += 1;
            next = *bytes.get(at)?;
        }
        if next.is_ascii_digit() {
            return None;
        }
    }
    let mut exponent = 0_i32;
    if next == b'.' {
        at += 1;
        let point = at;
        // Below this bound eight more digits cannot overflow.
        while mantissa < 100_000_000_000 {
            let (value, count) = leading_digits(*bytes.get(at..)?.first_chunk::<8>()?);
            if count == 8 {
                mantissa = mantissa * 100_000_000 + value;
                at += 8;
            } else {
                mantissa = mantissa * TENS[count] + value;
                at += count;
                break;
            }
        }
        next = *bytes.get(at)?;
        while next.is_ascii_digit() {
            if mantissa >= 1_000_000_000_000_000_000 {
                return None;
            }
            mantissa = mantissa * 10 + u64::from(next - b'0');
            at += 1;
            next = *bytes.get(at)?;
        }
        let digits = at - point;
        if digits == 0 {
            return None;
        }
        exponent = -i32::try_from(digits).ok()?;
    }
    if next == b'e' || next == b'E' {
        let (value, length, after) = short_exponent(bytes.get(at + 1..)?)?;
        exponent += value;
        at += 1 + length;
        next = after;
    }
    let magnitude = round_to_single(mantissa, exponent)?;
    Some((if negative { -magnitude } else { magnitude }, at, next))
}

const TENS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// An exponent of one or two digits, with what follows it.
#[inline]
fn short_exponent(bytes: &[u8]) -> Option<(i32, usize, u8)> {
    let (negative, signed) = match bytes.first()? {
        b'-' => (true, 1),
        b'+' => (false, 1),
        _ => (false, 0),
    };
    let mut at = signed;
    let mut value = 0_i32;
    while let Some(byte) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
        value = value * 10 + i32::from(byte - b'0');
        at += 1;
        if at - signed > 2 {
            return None;
        }
    }
    if at == signed {
        return None;
    }
    Some((if negative { -value } else { value }, at, *bytes.get(at)?))
}

/// `mantissa * 10**exponent` as a single, where rounding twice gives what rounding the true value twice gives.
#[inline]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // the roundings that are accounted for
fn round_to_single(mantissa: u64, exponent: i32) -> Option<f32> {
    if mantissa == 0 {
        return Some(0.0);
    }
    let power = *POWERS.get(exponent.unsigned_abs() as usize)?;
    let double = if exponent < 0 { mantissa as f64 / power } else { mantissa as f64 * power };
    // Below, singles lose digits; above, the sentinel -9999 is near.
    if !(1e-37..9000.0).contains(&double) {
        return None;
    }
    // A double has 29 bits more than a single; their middle is where the rounding turns.
    let beyond = double.to_bits() & ((1 << 29) - 1);
    if beyond.abs_diff(1 << 28) <= 16 {
        return None;
    }
    Some(double as f32)
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
