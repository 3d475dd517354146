//! Where the machine is: in the document, and in a value.

/// A token array of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Prompt,
    Generation,
    LogProbs,
    RoutedExperts,
}

impl Field {
    const ALL: [(&'static [u8], Self); 4] = [
        (b"prompt_token_ids", Self::Prompt),
        (b"generation_token_ids", Self::Generation),
        (b"generation_log_probs", Self::LogProbs),
        (b"routed_experts", Self::RoutedExperts),
    ];

    pub(super) fn of_key(key: &[u8]) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == key).map(|&(_, field)| field)
    }
}

/// What an open bracket belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Document,
    Response,
    Output,
    Item,
    Tokens(Field),
    Other,
}

/// An open bracket.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) role: Role,
    pub(super) is_object: bool,
    /// Index of the element at hand.
    pub(super) index: u64,
    /// Where the key of the member at hand begins in `keys`.
    pub(super) key_at: usize,
    pub(super) has_key: bool,
    /// Where the value (of a document's or response's member) or the member (of an item) begins in the residual.
    pub(super) place: usize,
    /// Item: a member is kept, so that the next one needs a comma.
    pub(super) keeps_member: bool,
    /// Item: the token array whose value is being left out.
    pub(super) left_out: Option<Field>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Before the document; how many bytes of a byte order mark came.
    Start(u8),
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    String,
    Escape,
    /// Digits of `\uXXXX` so far, and their value.
    Hex(u8, u16),
    Number(Num),
    /// A word, how many of its bytes came, and what it is.
    Word(&'static [u8], u8, Kind),
    /// The prompt at hand is the held text so far, up to this byte.
    HeldText(usize),
    End,
}

/// Where in a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Num {
    Minus,
    Zero,
    Int,
    Point,
    Fraction,
    E,
    ESign,
    Exponent,
}

impl Num {
    /// Whether a number may end here.
    pub(super) fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Int | Self::Fraction | Self::Exponent)
    }
}

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Bool,
    /// NaN and the infinities, which Python's `json` accepts.
    NotFinite,
    Number,
    String,
    Array,
    Object,
}

impl Kind {
    pub(super) fn in_words(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::NotFinite | Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "a list",
            Self::Object => "an object",
        }
    }

    pub(super) fn is_scalar(self) -> bool {
        !matches!(self, Self::Array | Self::Object)
    }
}
