//! Medians, and how sure they are.

/// The middle of some numbers; the mean of the two middle ones if their count is even.
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Two of the numbers between which the true median lies with at least 95 % certainty, whatever the
/// distribution: a sign test, so the count of values below the median is binomial with one half. With fewer
/// than six values no such pair exists, and the whole range is answered.
pub fn interval(values: &[f64]) -> (f64, f64) {
    let sorted = sorted(values);
    let n = sorted.len();
    if n == 0 {
        return (f64::NAN, f64::NAN);
    }
    let mut tail = 0.0;
    let mut probability = 0.5_f64.powi(n as i32);
    let mut rank = 0;
    for below in 0..n / 2 {
        tail += probability;
        if tail > 0.025 {
            break;
        }
        rank = below;
        probability *= (n - below) as f64 / (below + 1) as f64;
    }
    (sorted[rank], sorted[n - 1 - rank])
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
    }

    /// Ranks from the usual tables of the sign test: 4 and 12 of 15, 6 and 15 of 20, 1 and 6 of 6.
    #[test]
    fn the_interval_has_the_ranks_of_the_tables() {
        for (n, low, high) in [(15, 4, 12), (20, 6, 15), (6, 1, 6), (5, 1, 5)] {
            let values: Vec<f64> = (1..=n).map(f64::from).collect();
            let (got_low, got_high) = interval(&values);
            assert!((got_low - f64::from(low)).abs() < 1e-9, "{n}: {got_low}");
            assert!((got_high - f64::from(high)).abs() < 1e-9, "{n}: {got_high}");
        }
    }
}
