//! The other ranks, as the forward pass sees them.

use std::path::PathBuf;
use std::time::Duration;

use penstock_comm::{CommError, Group, Lost, Reader, Writer};
use penstock_kernels::{Acts, Cpu, Linear, Mode};
use serde::Deserialize;

use crate::error::DecoderError;

/// How parts of the residual stream and of the logits come together.
///
/// Ranks of a tensor-parallel group call the same methods in the same order with the same number of rows.
pub trait Peers: Send {
    /// `x += linear(acts)`, summed over the group in the order of ranks: all get the same bits.
    ///
    /// # Errors
    /// A peer is gone.
    fn add(&mut self, cpu: &Cpu, linear: &Linear, acts: &Acts, x: &mut [f32]) -> Result<(), Lost>;

    /// `x` summed over the group.
    ///
    /// # Errors
    /// As `add`.
    fn total(&mut self, cpu: &Cpu, x: &mut [f32]) -> Result<(), Lost>;

    /// The outputs of all ranks' `linear` side by side, one row of `out` for each of the `rows` of `acts`, on the rank that reads them off;
    /// whether this is the one. `cuts` says which columns are whose.
    ///
    /// # Errors
    /// As `add`.
    fn gather(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        acts: &Acts,
        cuts: &[usize],
        out: &mut [f32],
    ) -> Result<bool, Lost>;

    /// The residual stream after the stage before.
    ///
    /// # Errors
    /// As `add`.
    fn receive(&mut self, x: &mut [f32]) -> Result<(), Lost>;

    /// Hands the residual stream to the stage after.
    ///
    /// # Errors
    /// As `add`.
    fn send(&mut self, x: &[f32]) -> Result<(), Lost>;

    /// This rank cannot go on, and `reason` is why: nobody may wait for it.
    fn end(&mut self, reason: &str);
}

/// No other rank.
pub struct Alone;

impl Peers for Alone {
    fn add(&mut self, cpu: &Cpu, linear: &Linear, acts: &Acts, x: &mut [f32]) -> Result<(), Lost> {
        cpu.matmul(linear, acts, x, Mode::Add);
        Ok(())
    }

    fn total(&mut self, _: &Cpu, _: &mut [f32]) -> Result<(), Lost> {
        Ok(())
    }

    fn gather(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        acts: &Acts,
        _: &[usize],
        out: &mut [f32],
    ) -> Result<bool, Lost> {
        cpu.matmul(linear, acts, out, Mode::Store);
        Ok(true)
    }

    fn receive(&mut self, _: &mut [f32]) -> Result<(), Lost> {
        Err(Lost::Ended("a rank alone has no stage before it".into()))
    }

    fn send(&mut self, _: &[f32]) -> Result<(), Lost> {
        Err(Lost::Ended("a rank alone has no stage after it".into()))
    }

    fn end(&mut self, _: &str) {}
}

/// Where a rank finds the others: files of shared memory that were made for it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wiring {
    /// The tensor-parallel group; null where the stage is one rank.
    pub group: Option<GroupFile>,
    /// The ring from the same rank of the stage before; null in the first stage.
    pub before: Option<RingFile>,
    /// The ring to the same rank of the stage after; null in the last stage.
    pub after: Option<RingFile>,
    /// Seconds that a wait for another rank may take.
    pub patience_s: f64,
}

/// A group of ranks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct GroupFile {
    pub path: PathBuf,
    pub rank: usize,
    pub ranks: usize,
    /// Numbers of a part at most.
    pub capacity: usize,
}

/// A ring with one reader.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct RingFile {
    pub path: PathBuf,
    pub slots: usize,
    /// Bytes of a message at most.
    pub capacity: usize,
}

/// Ranks of one host, in shared memory.
pub struct Local {
    /// The tensor-parallel group; `None` where the stage is one rank.
    pub group: Option<Group>,
    /// From the same rank of the stage before.
    pub before: Option<Reader>,
    /// To the same rank of the stage after.
    pub after: Option<Writer>,
    /// How long the stage before may take.
    pub patience: Duration,
}

impl Local {
    /// Opens what `wiring` names.
    ///
    /// # Errors
    /// A file is missing or was made for another shape.
    pub fn join(wiring: &Wiring) -> Result<Self, CommError> {
        let patience = Duration::try_from_secs_f64(wiring.patience_s).unwrap_or(Duration::MAX);
        let group = |f: &GroupFile| Group::join(&f.path, f.rank, f.ranks, f.capacity, patience);
        let before = |f: &RingFile| Reader::open(&f.path, 0, 1, f.slots, f.capacity);
        let after = |f: &RingFile| Writer::open(&f.path, 1, f.slots, f.capacity, patience);
        Ok(Self {
            group: wiring.group.as_ref().map(group).transpose()?,
            before: wiring.before.as_ref().map(before).transpose()?,
            after: wiring.after.as_ref().map(after).transpose()?,
            patience,
        })
    }
}

impl Peers for Local {
    fn add(&mut self, cpu: &Cpu, linear: &Linear, acts: &Acts, x: &mut [f32]) -> Result<(), Lost> {
        let Some(group) = &mut self.group else {
            return Alone.add(cpu, linear, acts, x);
        };
        cpu.matmul(linear, acts, group.part(), Mode::Store);
        sum(cpu, group, x)
    }

    fn total(&mut self, cpu: &Cpu, x: &mut [f32]) -> Result<(), Lost> {
        let Some(group) = &mut self.group else {
            return Ok(());
        };
        group.part()[..x.len()].copy_from_slice(x);
        x.fill(0.0);
        sum(cpu, group, x)
    }

    fn gather(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        acts: &Acts,
        cuts: &[usize],
        out: &mut [f32],
    ) -> Result<bool, Lost> {
        let Some(group) = &mut self.group else {
            return Alone.gather(cpu, linear, acts, cuts, out);
        };
        cpu.matmul(linear, acts, group.part(), Mode::Store);
        let reads = group.rank() == 0;
        let parts = group.exchange()?;
        let whole = cuts.last().copied().unwrap_or(0);
        if reads {
            for (rank, pair) in cuts.windows(2).enumerate() {
                let width = pair[1] - pair[0];
                let part = parts.of(rank, acts.rows() * width).chunks_exact(width);
                for (row, part) in out.chunks_exact_mut(whole).zip(part) {
                    row[pair[0]..pair[1]].copy_from_slice(part);
                }
            }
        }
        Ok(reads)
    }

    fn receive(&mut self, x: &mut [f32]) -> Result<(), Lost> {
        let Some(before) = &mut self.before else {
            return Alone.receive(x);
        };
        let copied = before.receive_with(self.patience, |bytes| {
            let (numbers, _) = bytes.as_chunks::<4>();
            x.iter_mut()
                .zip(numbers)
                .for_each(|(x, b)| *x = f32::from_le_bytes(*b));
            bytes.len() == x.len() * 4
        })?;
        match copied {
            Some(true) => Ok(()),
            Some(false) => Err(Lost::Ended("the stage before computed another step".into())),
            None => Err(Lost::Silent {
                rank: 0,
                seconds: self.patience.as_secs(),
            }),
        }
    }

    fn send(&mut self, x: &[f32]) -> Result<(), Lost> {
        let Some(after) = &mut self.after else {
            return Alone.send(x);
        };
        after.send_with(|slot| {
            let (numbers, _) = slot.as_chunks_mut::<4>();
            numbers
                .iter_mut()
                .zip(x)
                .for_each(|(b, x)| *b = x.to_le_bytes());
            x.len() * 4
        })
    }

    fn end(&mut self, reason: &str) {
        self.group.iter().for_each(|g| g.end(reason));
        self.before.iter().for_each(|r| r.end(reason));
        self.after.iter().for_each(|w| w.end(reason));
    }
}

/// `x += ` the parts of all ranks, in their order.
fn sum(cpu: &Cpu, group: &mut Group, x: &mut [f32]) -> Result<(), Lost> {
    let ranks = group.ranks();
    let parts = group.exchange()?;
    let parts: Vec<&[f32]> = (0..ranks).map(|rank| parts.of(rank, x.len())).collect();
    cpu.add(&parts, x);
    Ok(())
}

impl From<Lost> for DecoderError {
    fn from(lost: Lost) -> Self {
        Self::Failed(lost.to_string())
    }
}
