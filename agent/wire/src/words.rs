//! Closed sets of words, as enums.

/// A closed set of words. A peer of another version may say another one, which is kept and shown as it is.
macro_rules! words {
    ($(#[$about:meta])* $Name:ident { $($(#[$doc:meta])* $Variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $Name {
            $($(#[$doc])* #[serde(rename = $word)] $Variant,)*
            /// Another version's.
            #[serde(untagged)]
            Other(String),
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $(Self::$Variant => $word,)*
                    Self::Other(word) => word,
                })
            }
        }
    };
}
