//! The one source of randomness: SplitMix64, written out here because its numbers have to stay
//! the same across platforms and versions, which the generators of libraries do not promise.

/// SplitMix64 (Steele, Lea and Flood 2014; Vigna's constants). Its period of 2^64 is far more
/// than any number of resamples; it is no source of secrets.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The generator of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, each as likely as any other; 0 if `end` is 0.
    ///
    /// The high half of a product of 128 bits, with those products thrown away whose low half
    /// would make some numbers likelier than others (Lemire 2019).
    pub const fn below(&mut self, end: u64) -> u64 {
        if end == 0 {
            return 0;
        }
        let excess = end.wrapping_neg() % end;
        loop {
            let product = self.bits() as u128 * end as u128;
            if product as u64 >= excess {
                return (product >> 64) as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_numbers_of_seed_zero_come_out() {
        let mut random = Random::new(0);
        let first = [random.bits(), random.bits(), random.bits()];
        assert_eq!(first, [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]);
    }

    #[test]
    fn numbers_below_an_end_are_even() {
        // 60,000 draws of 6: 10,000 of each are expected, with a standard deviation of 91.
        let mut random = Random::new(7);
        let mut seen = [0_u32; 6];
        for _ in 0..60_000 {
            seen[random.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (9_500..10_500).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
    }
}
