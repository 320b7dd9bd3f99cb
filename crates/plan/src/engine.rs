//! Chooses how the bytes of a file are copied.
use dmover_model::{CopyEngine, CopyPolicy, When};

/// From this size on, the page cache matters: smaller files are mostly complete before storage is accessed, and the two
/// extra calls of direct I/O cost more than they save.
pub const LARGE_BYTES: u64 = 128 << 20;

/// What is known about a file and the two file systems.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Situation {
    /// Size of the file.
    pub size: u64,
    /// Copies inside the kernel are supported, and may share blocks.
    pub kernel: bool,
    /// The source file system supports reads past the page cache.
    pub direct_read: bool,
    /// The destination file system supports writes past the page cache.
    pub direct_write: bool,
    /// The file is flushed before it is complete, so the page cache must be written out first.
    pub flushed: bool,
    /// The share of the content to read that is in the page cache, from 0 to 1; `None` if the kernel does not report
    /// it.
    pub cached: Option<f64>,
}

/// How bytes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// copy_file_range(2).
    Kernel,
    /// pread(2) and pwrite(2), each past the page cache or not.
    Blocks(Sides),
    /// Reads and writes queued by io_uring, so that they overlap.
    Ring(Sides),
}

/// Which sides go past the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sides {
    /// Reads.
    pub read: bool,
    /// Writes.
    pub write: bool,
}

/// Chooses the method for one file.
pub fn choose(policy: &CopyPolicy, situation: &Situation) -> Method {
    let sides = sides(policy, situation);
    // Only what goes by blocks is let go of in the page cache on the way.
    let forgets = (policy.forget_read && !sides.read) || (policy.forget_written && !sides.write);
    match policy.engine {
        _ if forgets => Method::Blocks(sides),
        CopyEngine::Buffered | CopyEngine::Direct => Method::Blocks(sides),
        CopyEngine::Uring => Method::Ring(sides),
        CopyEngine::Kernel | CopyEngine::Auto if situation.kernel && sides == Sides::default() => {
            Method::Kernel
        }
        CopyEngine::Kernel | CopyEngine::Auto => Method::Blocks(sides),
    }
}

fn sides(policy: &CopyPolicy, situation: &Situation) -> Sides {
    let demanded = matches!(policy.engine, CopyEngine::Direct | CopyEngine::Uring);
    let chooses = policy.engine == CopyEngine::Auto && situation.size >= LARGE_BYTES;
    // What is in the page cache is read faster from there; whether it is may be unknown.
    let cold = situation.cached.is_some_and(|share| share < 0.5);
    let read = chooses && situation.direct_read && cold;
    let write = chooses && situation.direct_write && situation.flushed;
    let side = |when, gains| match when {
        When::Always => true,
        When::Never => false,
        When::Auto => demanded || gains,
    };
    Sides { read: side(policy.direct_read, read), write: side(policy.direct_write, write) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Situation = Situation {
        size: LARGE_BYTES,
        kernel: true,
        direct_read: true,
        direct_write: true,
        flushed: true,
        cached: Some(1.0),
    };

    fn method(engine: CopyEngine, situation: Situation) -> Method {
        choose(&CopyPolicy { engine, ..CopyPolicy::default() }, &situation)
    }

    fn blocks(read: bool, write: bool) -> Method {
        Method::Blocks(Sides { read, write })
    }

    #[test]
    fn small_files_stay_in_the_kernel() {
        let small = Situation { size: LARGE_BYTES - 1, cached: Some(0.0), ..LARGE };
        assert_eq!(method(CopyEngine::Auto, small), Method::Kernel);
        let refused = Situation { kernel: false, ..small };
        assert_eq!(method(CopyEngine::Auto, refused), blocks(false, false));
    }

    #[test]
    fn large_files_are_written_past_the_cache_and_read_from_where_they_are() {
        assert_eq!(method(CopyEngine::Auto, LARGE), blocks(false, true));
        assert_eq!(
            method(CopyEngine::Auto, Situation { cached: Some(0.1), ..LARGE }),
            blocks(true, true)
        );
        assert_eq!(
            method(CopyEngine::Auto, Situation { cached: None, ..LARGE }),
            blocks(false, true),
            "in doubt a read through the cache loses nothing"
        );
        let lazy = Situation { flushed: false, ..LARGE };
        assert_eq!(method(CopyEngine::Auto, lazy), Method::Kernel);
        let neither = Situation { direct_read: false, direct_write: false, ..LARGE };
        assert_eq!(method(CopyEngine::Auto, neither), Method::Kernel);
    }

    #[test]
    fn an_engine_that_was_asked_for_is_taken() {
        assert_eq!(method(CopyEngine::Kernel, LARGE), Method::Kernel);
        assert_eq!(method(CopyEngine::Buffered, LARGE), blocks(false, false));
        assert_eq!(method(CopyEngine::Direct, Situation { size: 1, ..LARGE }), blocks(true, true));
        let both = Method::Ring(Sides { read: true, write: true });
        assert_eq!(method(CopyEngine::Uring, LARGE), both);
    }

    #[test]
    fn what_is_to_leave_the_page_cache_goes_by_blocks() {
        let small = Situation { size: 1, ..LARGE };
        let read = CopyPolicy { forget_read: true, ..CopyPolicy::default() };
        assert_eq!(choose(&read, &small), blocks(false, false));
        assert_eq!(choose(&read, &LARGE), blocks(false, true));
        let written = CopyPolicy { forget_written: true, ..CopyPolicy::default() };
        assert_eq!(choose(&written, &small), blocks(false, false));
        let uring = CopyPolicy { engine: CopyEngine::Uring, ..written };
        assert!(matches!(choose(&uring, &small), Method::Ring(_)), "never in the page cache");
    }

    #[test]
    fn the_switch_of_a_side_wins() {
        let policy = CopyPolicy {
            engine: CopyEngine::Direct,
            direct_read: When::Never,
            ..CopyPolicy::default()
        };
        assert_eq!(choose(&policy, &LARGE), blocks(false, true));
        let policy = CopyPolicy { direct_write: When::Always, ..CopyPolicy::default() };
        assert_eq!(choose(&policy, &Situation { size: 1, ..LARGE }), blocks(false, true));
    }
}
