//! A macro for enums whose values have a word each, and for sets of them.
macro_rules! word_set {
    ($(#[$doc:meta])* $enum:ident, $set:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $enum { $($(#[$vdoc])* $variant),* }

        impl $enum {
            /// Every value, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
            /// The word on the command line and in JSON.
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
            /// The value that `word` names.
            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|v| v.word() == word)
            }
        }

        /// A set of these.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        pub struct $set(u16);

        impl $set {
            /// The empty set.
            pub const NONE: Self = Self(0);
            /// Every member.
            pub fn all() -> Self {
                $enum::ALL.iter().copied().collect()
            }
            /// Whether `value` is a member.
            pub fn has(self, value: $enum) -> bool {
                self.0 & (1 << value as u16) != 0
            }
            /// Whether there is no member.
            pub fn is_empty(self) -> bool {
                self.0 == 0
            }
            /// Adds a member.
            pub fn insert(&mut self, value: $enum) {
                self.0 |= 1 << value as u16;
            }
            /// Removes a member.
            pub fn remove(&mut self, value: $enum) {
                self.0 &= !(1 << value as u16);
            }
            /// The members, in order.
            pub fn iter(self) -> impl Iterator<Item = $enum> {
                $enum::ALL.iter().copied().filter(move |v| self.has(*v))
            }
        }
        impl FromIterator<$enum> for $set {
            fn from_iter<I: IntoIterator<Item = $enum>>(values: I) -> Self {
                let mut set = Self::NONE;
                values.into_iter().for_each(|v| set.insert(v));
                set
            }
        }
    };
}
