//! Owns the random numbers of the bench, all from a seed. Not for secrets.

/// Random numbers by SplitMix64 (Steele, Lea, Flood 2014): small, seedable, the same everywhere.
#[derive(Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Exponentially distributed with this mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        // 53 bits, and never zero.
        let unit = ((self.number() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        -unit.ln() * mean
    }
}
