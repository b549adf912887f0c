//! Median and spread of rounds.

/// The minimum, the quartiles and the maximum of some rounds.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub low: f64,
    pub quarter: f64,
    pub median: f64,
    pub three_quarters: f64,
    pub high: f64,
}

impl Spread {
    /// Returns the spread of values, or `None` if there are no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let at = |share: f64| {
            let place = share * last as f64;
            let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Self {
            low: values[0],
            quarter: at(0.25),
            median: at(0.5),
            three_quarters: at(0.75),
            high: values[last],
        })
    }
}
