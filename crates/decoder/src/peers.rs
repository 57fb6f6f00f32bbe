//! The other ranks, as the forward pass sees them.

use penstock_comm::{Group, Lost};
use penstock_kernels::{Acts, Cpu, Linear, Mode};

/// Numbers that `total` exchanges at once: few enough that the parts stay in the caches.
const WINDOW: usize = 16 << 10;

/// How parts of the residual stream and of the logits come together.
///
/// Ranks of a tensor-parallel group call the same methods in the same order with the same number of
/// rows.
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

    /// The outputs of all ranks' `linear` side by side, one row of `out` for each of the `rows` of
    /// `acts`, on the rank that reads them off; whether this is the one. `cuts` says which columns
    /// are whose.
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

/// The way from the same rank of the stage before.
pub trait Before: Send {
    /// Waits for the residual stream of the next step.
    ///
    /// # Errors
    /// The stage before is gone, or computed another step.
    fn receive(&mut self, x: &mut [f32]) -> Result<(), Lost>;

    /// Ends what the other end waits for.
    fn end(&mut self, reason: &str);
}

/// The way to the same rank of the stage after.
pub trait After: Send {
    /// Hands over the residual stream of a step.
    ///
    /// # Errors
    /// The stage after is gone.
    fn send(&mut self, x: &[f32]) -> Result<(), Lost>;

    /// Ends what the other end waits for.
    fn end(&mut self, reason: &str);
}

/// A rank among others: its stage shares memory, other stages are wherever the pipes lead.
pub struct Local {
    /// The tensor-parallel group; `None` where the stage is one rank.
    pub group: Option<Group>,
    /// From the stage before; `None` in the first.
    pub before: Option<Box<dyn Before>>,
    /// To the stage after; `None` in the last.
    pub after: Option<Box<dyn After>>,
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
        for window in x.chunks_mut(WINDOW) {
            group.part()[..window.len()].copy_from_slice(window);
            window.fill(0.0);
            sum(cpu, group, window)?;
        }
        Ok(())
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
        match &mut self.before {
            Some(before) => before.receive(x),
            None => Alone.receive(x),
        }
    }

    fn send(&mut self, x: &[f32]) -> Result<(), Lost> {
        match &mut self.after {
            Some(after) => after.send(x),
            None => Alone.send(x),
        }
    }

    fn end(&mut self, reason: &str) {
        self.group.iter().for_each(|g| g.end(reason));
        self.before.iter_mut().for_each(|b| b.end(reason));
        self.after.iter_mut().for_each(|a| a.end(reason));
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
