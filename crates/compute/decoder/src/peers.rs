//! A rank's tensor-parallel group: in shared memory on one host, over streams on several hosts.

use penstock_collectives::{Group, GroupError, Star};
use penstock_kernels::Cpu;

use crate::le_bytes::{copy_in, copy_out};

/// Maximum numbers per exchange in shared memory: longer vectors are divided, so that the parts
/// stay in the CPU caches.
const WINDOW: usize = 16 << 10;

/// A tensor-parallel group, this rank included. All ranks call the same methods in the same order
/// with the same lengths. Every method fails with [`GroupError`] if a rank is lost.
pub trait Peers: Send {
    /// This rank's number in the group.
    fn rank(&self) -> usize;

    /// Maximum length of one `sum` or `share`; callers divide longer vectors.
    fn window(&self) -> usize;

    /// Buffer for this rank's contribution to the next `sum` or `gather`. Its initial contents are
    /// unspecified.
    fn part(&mut self) -> &mut [f32];

    /// All-reduce: adds the contributions of all ranks to `x`, in rank order. `x` must be the same
    /// on all ranks.
    fn sum(&mut self, cpu: &Cpu, x: &mut [f32]) -> Result<(), GroupError>;

    /// Calls `take` on rank 0 with the contribution of each rank, in rank order; rank `r`
    /// contributes `lens[r]` numbers. Returns true on rank 0.
    fn gather(
        &mut self,
        lens: &[usize],
        take: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<bool, GroupError>;

    /// Broadcasts the `tokens` of rank 0 to all ranks.
    fn share(&mut self, tokens: &mut [u32]) -> Result<(), GroupError>;

    /// Fails the operations of other ranks that wait for this rank, with the error `reason`.
    fn end(&mut self, reason: &str);
}

impl Peers for Group {
    fn rank(&self) -> usize {
        Group::rank(self)
    }

    fn window(&self) -> usize {
        WINDOW
    }

    fn part(&mut self) -> &mut [f32] {
        Group::part(self)
    }

    fn sum(&mut self, cpu: &Cpu, x: &mut [f32]) -> Result<(), GroupError> {
        let ranks = self.ranks();
        let parts = self.exchange()?;
        let parts: Vec<&[f32]> = (0..ranks).map(|rank| parts.of(rank, x.len())).collect();
        cpu.add(&parts, x);
        Ok(())
    }

    fn gather(
        &mut self,
        lens: &[usize],
        take: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<bool, GroupError> {
        let reads = Group::rank(self) == 0;
        let parts = self.exchange()?;
        if reads {
            for (rank, &len) in lens.iter().enumerate() {
                take(rank, parts.of(rank, len));
            }
        }
        Ok(reads)
    }

    fn share(&mut self, tokens: &mut [u32]) -> Result<(), GroupError> {
        // Token ids travel as the bit patterns of f32 numbers. The numbers are only copied, so
        // every bit pattern survives.
        for (number, token) in Group::part(self).iter_mut().zip(&*tokens) {
            *number = f32::from_bits(*token);
        }
        let (parts, len) = (self.exchange()?, tokens.len());
        for (token, number) in tokens.iter_mut().zip(parts.of(0, len)) {
            *token = number.to_bits();
        }
        Ok(())
    }

    fn end(&mut self, reason: &str) {
        Group::end(self, reason);
    }
}

/// A group over streams: rank 0 adds the parts of all ranks and sends the sum back. The result is
/// bit for bit equal to a sum in shared memory.
pub(crate) struct Distant {
    star: Star,
    part: Vec<f32>,
}

impl Distant {
    pub(crate) fn new(star: Star) -> Self {
        let part = vec![0.0; star.capacity() / 4];
        Self { star, part }
    }

    /// On rank 0, the contributions of ranks 1, 2, ...; `None` on other ranks.
    fn collect(&mut self, lens: &[usize]) -> Result<Option<Vec<Vec<f32>>>, GroupError> {
        let own = &self.part[..lens[self.star.rank()]];
        // Rank 0 sends nothing.
        let bytes = match self.star.rank() {
            0 => Vec::new(),
            _ => to_bytes(own),
        };
        let Some(parts) = self.star.gather(&bytes)? else {
            return Ok(None);
        };
        let numbers = parts.iter().zip(&lens[1..]).map(|(bytes, &len)| {
            let mut part = vec![0.0; len];
            from_bytes(bytes, &mut part).map(|()| part)
        });
        numbers.collect::<Result<_, _>>().map(Some)
    }
}

impl Peers for Distant {
    fn rank(&self) -> usize {
        self.star.rank()
    }

    fn window(&self) -> usize {
        self.part.len()
    }

    fn part(&mut self) -> &mut [f32] {
        &mut self.part
    }

    fn sum(&mut self, cpu: &Cpu, x: &mut [f32]) -> Result<(), GroupError> {
        let lens = vec![x.len(); self.star.ranks()];
        let mut bytes = Vec::new();
        if let Some(others) = self.collect(&lens)? {
            let own = std::iter::once(&self.part[..x.len()]);
            let parts: Vec<&[f32]> = own.chain(others.iter().map(Vec::as_slice)).collect();
            cpu.add(&parts, x);
            bytes = to_bytes(x);
        }
        match self.star.share(&bytes)? {
            Some(sum) => from_bytes(&sum, x),
            None => Ok(()),
        }
    }

    fn gather(
        &mut self,
        lens: &[usize],
        take: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<bool, GroupError> {
        let Some(others) = self.collect(lens)? else {
            return Ok(false);
        };
        take(0, &self.part[..lens[0]]);
        for (part, rank) in others.iter().zip(1..) {
            take(rank, part);
        }
        Ok(true)
    }

    fn share(&mut self, tokens: &mut [u32]) -> Result<(), GroupError> {
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let Some(shared) = self.star.share(&bytes)? else {
            return Ok(());
        };
        if shared.len() != bytes.len() {
            return Err(other_step());
        }
        let (words, _) = shared.as_chunks::<4>();
        for (token, word) in tokens.iter_mut().zip(words) {
            *token = u32::from_le_bytes(*word);
        }
        Ok(())
    }

    fn end(&mut self, reason: &str) {
        self.star.end(reason);
    }
}

fn to_bytes(numbers: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; numbers.len() * 4];
    copy_out(numbers, &mut bytes);
    bytes
}

fn from_bytes(bytes: &[u8], numbers: &mut [f32]) -> Result<(), GroupError> {
    copy_in(bytes, numbers).ok_or_else(other_step)
}

fn other_step() -> GroupError {
    GroupError::Ended("a rank of the group computed another step".into())
}
