//! Random numbers of the kernel.

/// Random bytes from the kernel, for secrets.
///
/// # Errors
/// The kernel gives none.
pub fn random_bytes<const COUNT: usize>() -> std::io::Result<[u8; COUNT]> {
    let mut bytes = [0u8; COUNT];
    let mut filled = 0;
    while filled < COUNT {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(bytes)
}

/// Random bytes from the kernel, for names that nobody can guess.
pub fn random_u64() -> u64 {
    #[cfg(feature = "simulated")]
    if let Some(number) = dmover_schedule::simulation::random() {
        return number;
    }
    let mut bytes = [0u8; 8];
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_ok() {
        return u64::from_ne_bytes(bytes);
    }
    // Sandboxes may forbid getrandom(2); time and pid still tell runs apart.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = now.map_or(0, |d| d.as_nanos() as u64);
    nanoseconds ^ (u64::from(std::process::id()) << 40)
}
