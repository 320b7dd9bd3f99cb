//! Facts about this host from the kernel.

/// The name of this host for messages, uname(2). Bytes that are not UTF-8 are replaced.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The bytes of the name of this host, to tell it from others.
pub fn name_bytes() -> Vec<u8> {
    rustix::system::uname().nodename().to_bytes().to_vec()
}

/// The random id of the running kernel's boot (random(4)); empty where /proc is missing.
pub fn boot_id() -> String {
    #[cfg(feature = "simulated")]
    if let Some(boot) = dmover_sys::simulated::boot_id() {
        return boot;
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// Milliseconds since the kernel was booted, suspended or not (`CLOCK_BOOTTIME` of clock_gettime(2)).
pub fn boot_clock_ms() -> u64 {
    #[cfg(feature = "simulated")]
    if dmover_schedule::simulation::is_running() {
        return dmover_schedule::time::since_1970().as_millis() as u64;
    }
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}
