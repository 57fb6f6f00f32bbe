//! Communication between the ranks of one decoder: sums and gathers inside a tensor-parallel group,
//! the residual stream between pipeline stages.

use penstock_collectives::Lost;
use penstock_kernels::{Activations, Cpu, Linear, Mode};

use crate::peers::Peers;

/// What the forward pass asks of the other ranks.
///
/// Ranks of a group call the same methods in the same order with the same number of rows. Every
/// method fails with [`Lost`] when a rank is gone.
pub trait Collectives: Send {
    /// `x += ` what `compute` gives, summed over the group in the order of ranks: all get the same
    /// bits. `compute` stores or adds its result, by the mode.
    ///
    /// # Errors
    /// A rank is gone.
    fn reduce(
        &mut self,
        cpu: &Cpu,
        x: &mut [f32],
        compute: &mut dyn FnMut(&mut [f32], Mode),
    ) -> Result<(), Lost>;

    /// `x += linear(acts)`, summed as by [`Collectives::reduce`].
    ///
    /// # Errors
    /// A rank is gone.
    fn matmul_reduce(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        acts: &Activations,
        x: &mut [f32],
    ) -> Result<(), Lost> {
        self.reduce(cpu, x, &mut |out, mode| cpu.matmul(linear, acts, out, mode))
    }

    /// `x` summed over the group.
    ///
    /// # Errors
    /// A rank is gone.
    fn all_reduce(&mut self, cpu: &Cpu, x: &mut [f32]) -> Result<(), Lost>;

    /// The outputs of all ranks' `linear` side by side, one row of `out` for each row of
    /// activations, on rank 0; returns whether this is the one. `cuts[r]..cuts[r + 1]` are the
    /// columns of rank r.
    ///
    /// # Errors
    /// A rank is gone.
    fn gather_logits(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        acts: &Activations,
        cuts: &[usize],
        out: &mut [f32],
    ) -> Result<bool, Lost>;

    /// Whether `gather_logits` gives this rank the logits.
    fn draws(&self) -> bool;

    /// Copies the `tokens` of rank 0, which draws them, to the whole group.
    ///
    /// # Errors
    /// A rank is gone.
    fn broadcast_tokens(&mut self, tokens: &mut [u32]) -> Result<(), Lost>;

    /// Receives the residual stream from the stage before.
    ///
    /// # Errors
    /// A rank is gone.
    fn receive(&mut self, x: &mut [f32]) -> Result<(), Lost>;

    /// Sends the residual stream to the stage after.
    ///
    /// # Errors
    /// A rank is gone.
    fn send(&mut self, x: &[f32]) -> Result<(), Lost>;

    /// Ends all waits for this rank, which cannot go on because of `reason`.
    fn end(&mut self, reason: &str);
}

/// Collectives of a decoder on one rank.
pub struct Alone;

impl Collectives for Alone {
    fn reduce(
        &mut self,
        _: &Cpu,
        x: &mut [f32],
        compute: &mut dyn FnMut(&mut [f32], Mode),
    ) -> Result<(), Lost> {
        compute(x, Mode::Add);
        Ok(())
    }

    fn all_reduce(&mut self, _: &Cpu, _: &mut [f32]) -> Result<(), Lost> {
        Ok(())
    }

    fn gather_logits(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        acts: &Activations,
        _: &[usize],
        out: &mut [f32],
    ) -> Result<bool, Lost> {
        cpu.matmul(linear, acts, out, Mode::Store);
        Ok(true)
    }

    fn draws(&self) -> bool {
        true
    }

    fn broadcast_tokens(&mut self, _: &mut [u32]) -> Result<(), Lost> {
        Ok(())
    }

    fn receive(&mut self, _: &mut [f32]) -> Result<(), Lost> {
        Err(Lost::Ended("a rank alone has no stage before it".into()))
    }

    fn send(&mut self, _: &[f32]) -> Result<(), Lost> {
        Err(Lost::Ended("a rank alone has no stage after it".into()))
    }

    fn end(&mut self, _: &str) {}
}

/// Receiving end of the pipe from the same rank of the stage before.
pub trait Before: Send {
    /// Waits for the residual stream of the next step.
    ///
    /// # Errors
    /// The stage before is gone, or computed another step.
    fn receive(&mut self, x: &mut [f32]) -> Result<(), Lost>;

    /// Ends the waits of the other end.
    fn end(&mut self, reason: &str);
}

/// Sending end of the pipe to the same rank of the stage after.
pub trait After: Send {
    /// Sends the residual stream of a step.
    ///
    /// # Errors
    /// The stage after is gone.
    fn send(&mut self, x: &[f32]) -> Result<(), Lost>;

    /// Ends the waits of the other end.
    fn end(&mut self, reason: &str);
}

/// Collectives of a rank that is joined to its group and has pipes to other stages.
pub struct Joined {
    /// The tensor-parallel group; `None` where the stage is one rank.
    pub group: Option<Box<dyn Peers>>,
    /// From the stage before; `None` in the first.
    pub before: Option<Box<dyn Before>>,
    /// To the stage after; `None` in the last.
    pub after: Option<Box<dyn After>>,
}

impl Collectives for Joined {
    fn reduce(
        &mut self,
        cpu: &Cpu,
        x: &mut [f32],
        compute: &mut dyn FnMut(&mut [f32], Mode),
    ) -> Result<(), Lost> {
        let Some(group) = &mut self.group else {
            return Alone.reduce(cpu, x, compute);
        };
        compute(&mut group.part()[..x.len()], Mode::Store);
        group.sum(cpu, x)
    }

    fn all_reduce(&mut self, cpu: &Cpu, x: &mut [f32]) -> Result<(), Lost> {
        let Some(group) = &mut self.group else {
            return Ok(());
        };
        for window in x.chunks_mut(group.window()) {
            group.part()[..window.len()].copy_from_slice(window);
            window.fill(0.0);
            group.sum(cpu, window)?;
        }
        Ok(())
    }

    fn gather_logits(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        acts: &Activations,
        cuts: &[usize],
        out: &mut [f32],
    ) -> Result<bool, Lost> {
        let Some(group) = &mut self.group else {
            return Alone.gather_logits(cpu, linear, acts, cuts, out);
        };
        cpu.matmul(linear, acts, group.part(), Mode::Store);
        let width = |rank: usize| cuts[rank + 1] - cuts[rank];
        let widths = cuts.windows(2).map(|pair| pair[1] - pair[0]);
        let lens: Vec<usize> = widths.map(|width| acts.rows() * width).collect();
        let whole = cuts.last().copied().unwrap_or(0);
        group.gather(&lens, &mut |rank, part| {
            let part = part.chunks_exact(width(rank));
            for (row, part) in out.chunks_exact_mut(whole).zip(part) {
                row[cuts[rank]..cuts[rank + 1]].copy_from_slice(part);
            }
        })
    }

    fn draws(&self) -> bool {
        self.group.as_ref().is_none_or(|group| group.rank() == 0)
    }

    fn broadcast_tokens(&mut self, tokens: &mut [u32]) -> Result<(), Lost> {
        let Some(group) = &mut self.group else {
            return Ok(());
        };
        tokens
            .chunks_mut(group.window())
            .try_for_each(|window| group.share(window))
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
        self.group.iter_mut().for_each(|g| g.end(reason));
        self.before.iter_mut().for_each(|b| b.end(reason));
        self.after.iter_mut().for_each(|a| a.end(reason));
    }
}
