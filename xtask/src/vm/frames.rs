//! What goes over the virtio port between host and guest: a kind byte, a little-endian u32 length, the bytes.
//!
//! The other end is vm-tests/guest/agent.py.

use std::io::{self, Read, Write};

/// The longest frame that the guest sends; more is a broken guest.
const LIMIT: usize = 1 << 20;

/// What the guest says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FromGuest {
    /// The command starts now.
    Ready,
    /// Bytes of the command's standard output.
    Stdout(Vec<u8>),
    /// Bytes of the command's standard error.
    Stderr(Vec<u8>),
    /// The command ended, with the status that a shell would show.
    Exit(u32),
    /// The guest could not get ready, and why.
    Failed(String),
}

/// What the host says.
#[derive(Debug)]
pub(crate) enum ToGuest<'a> {
    /// Bytes for the command's standard input; none at all means its end.
    Stdin(&'a [u8]),
    /// The terminal's new size: rows, columns.
    Size(u16, u16),
    /// Everything arrived; the guest may power off.
    Bye,
}

/// Writes one frame.
pub(crate) fn write(to: &mut impl Write, frame: &ToGuest<'_>) -> io::Result<()> {
    let (kind, payload) = match frame {
        ToGuest::Stdin(bytes) => (b'i', bytes.to_vec()),
        ToGuest::Size(rows, columns) => (b'w', [rows.to_le_bytes(), columns.to_le_bytes()].concat()),
        ToGuest::Bye => (b'b', Vec::new()),
    };
    let length = u32::try_from(payload.len()).map_err(|_| invalid("a frame over 4 GiB"))?;
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&payload);
    to.write_all(&bytes)
}

/// Reads one frame; `None` when the guest is gone.
pub(crate) fn read(from: &mut impl Read) -> io::Result<Option<FromGuest>> {
    let mut head = [0; 5];
    match from.read_exact(&mut head) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > LIMIT {
        return Err(invalid("a frame of the guest is too long"));
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    match head[0] {
        b'r' => Ok(Some(FromGuest::Ready)),
        b'o' => Ok(Some(FromGuest::Stdout(payload))),
        b'e' => Ok(Some(FromGuest::Stderr(payload))),
        b'x' => match <[u8; 4]>::try_from(payload.as_slice()) {
            Ok(bytes) => Ok(Some(FromGuest::Exit(u32::from_le_bytes(bytes)))),
            Err(_) => Err(invalid("the guest's exit status has a wrong length")),
        },
        b'f' => Ok(Some(FromGuest::Failed(String::from_utf8_lossy(&payload).into_owned()))),
        _ => Err(invalid("the guest sent a frame of an unknown kind")),
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::{FromGuest, ToGuest, read, write};

    #[test]
    fn frames_are_read_one_by_one_and_their_end_is_seen() {
        let mut bytes: &[u8] = b"r\0\0\0\0o\x02\0\0\0hix\x04\0\0\0\x03\0\0\0";
        assert_eq!(read(&mut bytes).unwrap(), Some(FromGuest::Ready));
        assert_eq!(read(&mut bytes).unwrap(), Some(FromGuest::Stdout(b"hi".to_vec())));
        assert_eq!(read(&mut bytes).unwrap(), Some(FromGuest::Exit(3)));
        assert_eq!(read(&mut bytes).unwrap(), None);
    }

    #[test]
    fn hostile_frames_are_errors() {
        for mut bytes in [&b"o\xff\xff\xff\xff"[..], b"?\0\0\0\0", b"x\x01\0\0\0\x03", b"o\x05\0\0\0hi"] {
            assert!(read(&mut bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn sizes_and_input_are_written_as_the_agent_reads_them() {
        let mut bytes = Vec::new();
        write(&mut bytes, &ToGuest::Size(24, 80)).unwrap();
        write(&mut bytes, &ToGuest::Stdin(b"x")).unwrap();
        write(&mut bytes, &ToGuest::Bye).unwrap();
        assert_eq!(bytes, b"w\x04\0\0\0\x18\0\x50\0i\x01\0\0\0xb\0\0\0\0");
    }
}
