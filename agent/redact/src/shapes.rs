//! Tokens that are known by how they begin: of providers of models, forges, clouds.

/// A token's shape: how it begins, of what it goes on, and for how long at least.
pub(crate) struct Shape {
    /// As it is written; ASCII, three bytes at least.
    pub(crate) begins: &'static str,
    of: Class,
    /// Bytes that follow, at least.
    least: usize,
}

/// What a token is made of.
#[derive(Debug, Clone, Copy)]
enum Class {
    Alphanumeric,
    /// And `_`, `-`.
    Word,
    /// And points.
    Dotted,
    /// Capital letters and digits.
    Capital,
    Hex,
    /// [`Class::Word`] with a digit or a long run: names in code and in style sheets begin like this, too.
    Sparse,
}

impl Class {
    fn has(self, byte: u8) -> bool {
        match self {
            Self::Alphanumeric => byte.is_ascii_alphanumeric(),
            Self::Word | Self::Sparse => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'),
            Self::Dotted => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'),
            Self::Capital => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Hex => byte.is_ascii_hexdigit(),
        }
    }
}

const fn shape(begins: &'static str, of: Class, least: usize) -> Shape {
    Shape { begins, of, least }
}

/// Shapes of tokens in use. The rules have most of them, too, and in full; these match what is cut or made up for a test.
pub(crate) const SHAPES: &[Shape] = &[
    shape("sk-", Class::Sparse, 16),
    shape("ghp_", Class::Alphanumeric, 20),
    shape("gho_", Class::Alphanumeric, 20),
    shape("ghu_", Class::Alphanumeric, 20),
    shape("ghs_", Class::Alphanumeric, 20),
    shape("ghr_", Class::Alphanumeric, 20),
    shape("github_pat_", Class::Word, 20),
    shape("glpat-", Class::Word, 16),
    shape("xoxa-", Class::Word, 10),
    shape("xoxb-", Class::Word, 10),
    shape("xoxe-", Class::Word, 10),
    shape("xoxo-", Class::Word, 10),
    shape("xoxp-", Class::Word, 10),
    shape("xoxr-", Class::Word, 10),
    shape("xoxs-", Class::Word, 10),
    shape("xapp-", Class::Word, 16),
    shape("AKIA", Class::Capital, 16),
    shape("ASIA", Class::Capital, 16),
    shape("AIza", Class::Word, 30),
    shape("ya29.", Class::Word, 20),
    shape("1//0", Class::Word, 36),
    shape("GOCSPX-", Class::Word, 20),
    shape("npm_", Class::Alphanumeric, 30),
    shape("pypi-", Class::Word, 30),
    shape("hf_", Class::Alphanumeric, 25),
    shape("sk_live_", Class::Alphanumeric, 10),
    shape("sk_test_", Class::Alphanumeric, 10),
    shape("rk_live_", Class::Alphanumeric, 10),
    shape("rk_test_", Class::Alphanumeric, 10),
    shape("whsec_", Class::Alphanumeric, 20),
    shape("SG.", Class::Dotted, 40),
    shape("dop_v1_", Class::Hex, 40),
    shape("doo_v1_", Class::Hex, 40),
    shape("dor_v1_", Class::Hex, 40),
    shape("hvs.", Class::Word, 20),
    shape("hvb.", Class::Word, 20),
    shape("hvr.", Class::Word, 20),
    shape("AGE-SECRET-KEY-1", Class::Capital, 40),
    shape("API-", Class::Capital, 26),
    shape("sgp_", Class::Word, 40),
    shape("gsk_", Class::Alphanumeric, 30),
    shape("xai-", Class::Alphanumeric, 40),
    shape("nvapi-", Class::Word, 40),
    shape("r8_", Class::Alphanumeric, 30),
    shape("tvly-", Class::Sparse, 20),
    shape("figd_", Class::Word, 30),
    shape("dckr_pat_", Class::Word, 20),
    shape("sbp_", Class::Hex, 40),
    shape("tskey-", Class::Sparse, 20),
    shape("secret_", Class::Alphanumeric, 40),
    shape("ATATT3", Class::Word, 40),
];

/// Bytes of a token that are looked at to tell whether it is one.
const LOOK: usize = 256;

/// Where the token ends that begins here, if it is one.
pub(crate) fn end(text: &str, at: usize, shape: &Shape) -> Option<usize> {
    let bytes = text.as_bytes();
    let rest = bytes.get(at..)?.strip_prefix(shape.begins.as_bytes())?;
    // Capital letters and digits are as good as never the middle of something else.
    if !begins_word(bytes, at) && !matches!(shape.of, Class::Capital) {
        return None;
    }
    let run = rest.get(..rest.len().min(LOOK))?;
    let run = run.get(..run.iter().take_while(|byte| shape.of.has(**byte)).count())?;
    let is_one = match shape.of {
        Class::Sparse => {
            run.iter().any(u8::is_ascii_digit)
                || run.split(|byte| matches!(byte, b'-' | b'_')).any(|part| part.len() >= 16)
        }
        Class::Alphanumeric | Class::Word | Class::Dotted => {
            run.iter().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
                || run.len() >= shape.least + 10
        }
        Class::Capital | Class::Hex => true,
    };
    if run.len() < shape.least || !is_one || crate::values::is_placeholder(std::str::from_utf8(run).ok()?) {
        return None;
    }
    let length = rest.iter().take_while(|byte| shape.of.has(**byte)).count();
    Some(at + shape.begins.len() + length)
}

/// Whether no word goes on here; a letter behind a backslash is an escape.
pub(crate) fn begins_word(bytes: &[u8], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).and_then(|at| bytes.get(at)).copied().unwrap_or(b' ');
    !before(1).is_ascii_alphanumeric()
        || before(2) == b'\\' && matches!(before(1), b'n' | b'r' | b't' | b'b' | b'f')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> bool {
        SHAPES.iter().any(|shape| text.starts_with(shape.begins) && end(text, 0, shape) == Some(text.len()))
    }

    #[test]
    fn tokens_are_told_from_names_that_begin_like_them() {
        for token in ["sk-ant-api03-Zm9vYmFyYmF6cXV4", "sk-abcdefghijklmnopqrst", "AKIAIOSFODNN7EXAMPLE"] {
            assert!(whole(token), "{token}");
        }
        for name in [
            "sk-loading-spinner-of-a-container",
            "sk-short1",
            "hf_transformers_of_many_models_here",
            "secret_of_the_whole_world",
        ] {
            assert!(!whole(name), "{name}");
        }
        let shape = &SHAPES[0];
        let token = "sk-0123456789abcdefghij";
        assert_eq!(end(&format!("task-{token}"), 2, shape), None);
        assert!(
            end(&format!("ri{token}"), 2, shape).is_none() && end(&format!("\\n{token}"), 2, shape).is_some()
        );
    }
}
