//! How far the clocks of two hosts differ.
use dmover_model::{Metadata, MountId, Timestamp};
use std::time::{Duration, SystemTime};

/// Clocks that are kept right by NTP may have differed by this much at other times than now.
const DRIFT: Duration = Duration::from_secs(1);

/// How far the clock that sets the times of a file system at another host differs from the clock here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Skew {
    /// The file system of the root: what is mounted below it may have other clocks.
    mount: MountId,
    most: Option<Duration>,
}

impl Skew {
    /// From the clock of the other host (`None`: it does not set the times), which was read between two times of the clock
    /// here.
    pub(super) fn measured(
        mount: MountId,
        clock: Option<Timestamp>,
        (sent, received): (SystemTime, SystemTime),
    ) -> Self {
        let most = clock.and_then(|clock| {
            let there = Duration::new(clock.seconds.try_into().ok()?, clock.nanoseconds);
            let here = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
            let [sent, received] = [here(sent)?, here(received)?];
            Some(there.abs_diff(sent).max(there.abs_diff(received)) + DRIFT)
        });
        Self { mount, most }
    }

    /// The most by which times of a directory and its entries may differ from the clock here; `None`: not known.
    pub(super) fn of(&self, directory: &Metadata) -> Option<Duration> {
        self.most.filter(|_| directory.identity.mount == self.mount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_skew_covers_the_offset_and_the_time_of_the_answer() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let clock = |seconds| Some(Timestamp { seconds, nanoseconds: 0 });
        let most = |clock, times| Skew::measured(MountId(1), clock, times).most;
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(most(clock(100), (at(100), at(100))), seconds(1));
        assert_eq!(most(clock(100), (at(98), at(104))), seconds(5), "the answer took six seconds");
        assert_eq!(most(clock(100), (at(400), at(401))), seconds(302), "it is behind");
        assert_eq!(most(clock(400), (at(100), at(101))), seconds(301), "it is ahead");
        assert_eq!(most(None, (at(100), at(100))), None);
        assert_eq!(most(clock(-5), (at(100), at(100))), None);
    }
}
