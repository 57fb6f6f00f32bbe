//! Communication between the ranks of one decoder: sums and gathers inside a tensor-parallel group,
//! the residual stream between pipeline stages.

use penstock_collectives::GroupError;
use penstock_kernels::{Activations, Cpu, Linear, Mode};

use crate::peers::Peers;

/// The collective operations of the forward pass.
///
/// All ranks of a group must call the same methods in the same order with the same number of rows.
/// Every method fails with [`GroupError`] if a rank is lost.
pub trait Collectives: Send {
    /// All-reduce: `x +=` the result of `compute`, summed over the group in rank order, so that all
    /// ranks get the same bits. `compute` stores or adds its result, depending on the mode.
    fn reduce(
        &mut self,
        cpu: &Cpu,
        x: &mut [f32],
        compute: &mut dyn FnMut(&mut [f32], Mode),
    ) -> Result<(), GroupError>;

    /// `x += linear(acts)`, summed over the group as in [`Collectives::reduce`].
    fn matmul_reduce(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        acts: &Activations,
        x: &mut [f32],
    ) -> Result<(), GroupError> {
        self.reduce(cpu, x, &mut |out, mode| cpu.matmul(linear, acts, out, mode))
    }

    /// All-reduce of `x` in place.
    fn all_reduce(&mut self, cpu: &Cpu, x: &mut [f32]) -> Result<(), GroupError>;

    /// Gathers the outputs of all ranks' `linear` on rank 0: one row of `out` per row of
    /// activations, with rank r in columns `cuts[r]..cuts[r + 1]`. Returns true on rank 0.
    fn gather_logits(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        acts: &Activations,
        cuts: &[usize],
        out: &mut [f32],
    ) -> Result<bool, GroupError>;

    /// True if this rank receives the logits from `gather_logits` and therefore samples.
    fn draws(&self) -> bool;

    /// Broadcasts the `tokens` sampled by rank 0 to the whole group.
    fn broadcast_tokens(&mut self, tokens: &mut [u32]) -> Result<(), GroupError>;

    /// Receives the residual stream from the previous stage.
    fn receive(&mut self, x: &mut [f32]) -> Result<(), GroupError>;

    /// Sends the residual stream to the next stage.
    fn send(&mut self, x: &[f32]) -> Result<(), GroupError>;

    /// Fails the operations of other ranks that wait for this rank, with the error `reason`.
    fn end(&mut self, reason: &str);
}

/// Collectives of a single-rank decoder.
pub struct Alone;

impl Collectives for Alone {
    fn reduce(
        &mut self,
        _: &Cpu,
        x: &mut [f32],
        compute: &mut dyn FnMut(&mut [f32], Mode),
    ) -> Result<(), GroupError> {
        compute(x, Mode::Add);
        Ok(())
    }

    fn all_reduce(&mut self, _: &Cpu, _: &mut [f32]) -> Result<(), GroupError> {
        Ok(())
    }

    fn gather_logits(
        &mut self,
        cpu: &Cpu,
        linear: &Linear,
        acts: &Activations,
        _: &[usize],
        out: &mut [f32],
    ) -> Result<bool, GroupError> {
        cpu.matmul(linear, acts, out, Mode::Store);
        Ok(true)
    }

    fn draws(&self) -> bool {
        true
    }

    fn broadcast_tokens(&mut self, _: &mut [u32]) -> Result<(), GroupError> {
        Ok(())
    }

    fn receive(&mut self, _: &mut [f32]) -> Result<(), GroupError> {
        Err(GroupError::Ended(
            "a rank alone has no stage before it".into(),
        ))
    }

    fn send(&mut self, _: &[f32]) -> Result<(), GroupError> {
        Err(GroupError::Ended(
            "a rank alone has no stage after it".into(),
        ))
    }

    fn end(&mut self, _: &str) {}
}

/// Receiving end of the pipe from the same rank of the previous stage.
pub trait Before: Send {
    /// Receives the residual stream of the next step.
    ///
    /// # Errors
    /// The previous stage is lost, or computed a different step.
    fn receive(&mut self, x: &mut [f32]) -> Result<(), GroupError>;

    /// Fails the other end's pending operations, with the error `reason`.
    fn end(&mut self, reason: &str);
}

/// Sending end of the pipe to the same rank of the next stage.
pub trait After: Send {
    /// Sends the residual stream of a step.
    ///
    /// # Errors
    /// The next stage is lost.
    fn send(&mut self, x: &[f32]) -> Result<(), GroupError>;

    /// Fails the other end's pending operations, with the error `reason`.
    fn end(&mut self, reason: &str);
}

/// Collectives of a rank in a tensor-parallel group or a pipeline.
pub struct Joined {
    /// The tensor-parallel group; `None` if the stage has one rank.
    pub group: Option<Box<dyn Peers>>,
    /// Connection from the previous stage; `None` in the first stage.
    pub before: Option<Box<dyn Before>>,
    /// Connection to the next stage; `None` in the last stage.
    pub after: Option<Box<dyn After>>,
}

impl Collectives for Joined {
    fn reduce(
        &mut self,
        cpu: &Cpu,
        x: &mut [f32],
        compute: &mut dyn FnMut(&mut [f32], Mode),
    ) -> Result<(), GroupError> {
        let Some(group) = &mut self.group else {
            return Alone.reduce(cpu, x, compute);
        };
        compute(&mut group.part()[..x.len()], Mode::Store);
        group.sum(cpu, x)
    }

    fn all_reduce(&mut self, cpu: &Cpu, x: &mut [f32]) -> Result<(), GroupError> {
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
    ) -> Result<bool, GroupError> {
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

    fn broadcast_tokens(&mut self, tokens: &mut [u32]) -> Result<(), GroupError> {
        let Some(group) = &mut self.group else {
            return Ok(());
        };
        tokens
            .chunks_mut(group.window())
            .try_for_each(|window| group.share(window))
    }

    fn receive(&mut self, x: &mut [f32]) -> Result<(), GroupError> {
        match &mut self.before {
            Some(before) => before.receive(x),
            None => Alone.receive(x),
        }
    }

    fn send(&mut self, x: &[f32]) -> Result<(), GroupError> {
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
