//! Pauses a job whose errors are systemic: a full disk fails every file in the same way.
use dmover_model::ErrorClass;

/// Counts consecutive failures of one class; a success resets the count.
#[derive(Debug, Default)]
pub struct Breaker {
    class: Option<ErrorClass>,
    run: u32,
}

impl Breaker {
    /// The number of consecutive failures of one systemic class that pauses the job. It is small enough to end within
    /// seconds on storage that times out, and large enough that a handful of bad files never pauses a job.
    pub const LIMIT: u32 = 64;

    /// Records that content was copied.
    pub fn success(&mut self) {
        self.run = 0;
    }

    /// Records a failed entry. Returns the class once the limit is reached.
    pub fn failure(&mut self, class: ErrorClass) -> Option<ErrorClass> {
        if !class.systemic() {
            return None;
        }
        if self.class != Some(class) {
            self.class = Some(class);
            self.run = 0;
        }
        self.run += 1;
        (self.run >= Self::LIMIT).then_some(class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trips_on_a_run_of_one_systemic_class_only() {
        let mut breaker = Breaker::default();
        for _ in 0..Breaker::LIMIT * 2 {
            assert_eq!(breaker.failure(ErrorClass::Denied), None);
        }
        for _ in 1..Breaker::LIMIT {
            assert_eq!(breaker.failure(ErrorClass::NoSpace), None);
        }
        breaker.success();
        for _ in 1..Breaker::LIMIT {
            assert_eq!(breaker.failure(ErrorClass::NoSpace), None);
        }
        assert_eq!(breaker.failure(ErrorClass::NoSpace), Some(ErrorClass::NoSpace));
    }
}
