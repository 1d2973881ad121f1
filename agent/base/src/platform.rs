//! Where Ringfence runs: Linux on x86_64, kernel 6.1 or newer. Anywhere else it says so in one sentence.

/// The oldest kernel with every hook that the programs need.
const OLDEST: (u32, u32) = (6, 1);

/// Why Ringfence cannot run here, as one sentence; `None` where it can.
///
/// `os` and `arch` are those the binary was built for (`std::env::consts`), `release` is what the running kernel calls
/// itself (`uname -r`). A release that cannot be read as a version is refused too.
pub fn refusal(os: &str, arch: &str, release: &str) -> Option<String> {
    if os != "linux" {
        return Some(format!(
            "Ringfence enforces with Linux's own LSM hooks and cannot run on {os}; use a Linux machine or VM (kernel 6.1 or newer, x86_64)"
        ));
    }
    if arch != "x86_64" {
        return Some(format!("Ringfence supports x86_64 only so far, and this is {arch}"));
    }
    match version(release) {
        Some(version) if version >= OLDEST => None,
        _ => Some(format!(
            "Ringfence needs Linux {}.{} or newer, and this kernel is {release}; on Debian 12 and newer or Ubuntu 24.04 the distribution's kernel will do",
            OLDEST.0, OLDEST.1
        )),
    }
}

/// Major and minor of a release such as `6.12.111+deb12-cloud-amd64`.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn supported_kernels_pass() {
        for release in
            ["6.1.0-56-cloud-amd64", "6.12.111+deb12-cloud-amd64", "7.2.13+deb14-cloud-amd64", "6.1"]
        {
            assert_eq!(refusal("linux", "x86_64", release), None, "{release}");
        }
    }

    #[test]
    fn everything_else_is_one_sentence_that_names_it() {
        let cases = [
            ("macos", "aarch64", "24.1.0", "macos"),
            ("windows", "x86_64", "", "windows"),
            ("linux", "aarch64", "6.12.1", "aarch64"),
            ("linux", "x86_64", "5.15.0-1-generic", "5.15.0-1-generic"),
            ("linux", "x86_64", "6.0.19", "6.0.19"),
            ("linux", "x86_64", "strange", "strange"),
        ];
        for (os, arch, release, named) in cases {
            let said = refusal(os, arch, release).unwrap_or_default();
            assert!(said.contains(named) && !said.contains('\n'), "{os} {arch} {release}: {said:?}");
        }
    }
}
