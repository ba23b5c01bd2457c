//! Owns a fast source of random numbers for load balancing and jitter. Not for secrets.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// SplitMix64 (Steele, Lea, Flood 2014): one atomic addition and a few multiplications a number.
#[derive(Debug)]
pub struct Random(AtomicU64);

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// Seeded by the system.
    pub fn from_system() -> Self {
        Self::seeded(RandomState::new().hash_one(()))
    }

    /// Seeded by the caller.
    pub fn seeded(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }

    /// The next number.
    pub fn next(&self) -> u64 {
        let mut z = self
            .0
            .fetch_add(GOLDEN_GAMMA, Ordering::Relaxed)
            .wrapping_add(GOLDEN_GAMMA);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly() {
        let random = Random::seeded(7);
        let mut counts = [0u32; 16];
        for _ in 0..16_000 {
            counts[(random.next() >> 60) as usize] += 1;
        }
        assert!(counts.iter().all(|c| (850..1150).contains(c)), "{counts:?}");
    }
}
