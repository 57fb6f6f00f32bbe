//! Products with one small matrix per head: queries into the latent space, and weighted latent sums
//! back to values.

use std::ops::Range;

use crate::activations::Activations;
use crate::buffer::{HeadColumns, SharedHeads};
use crate::cpu::Cpu;
use crate::gemm::{self, Mode, Tile};
use crate::packed::{PANEL, Packed};
use crate::tasks::{self, Block, Task};

impl Cpu {
    /// Row r of head h of `out` = matrix of head h times row `h * rows + r` of `acts`. Each head
    /// has `rows` rows.
    ///
    /// # Panics
    /// The number of rows is not a multiple of the heads, or shapes differ.
    pub fn head_products(&self, heads: &[Packed], acts: &Activations, out: HeadColumns<'_>) {
        assert!(
            !heads.is_empty() && acts.rows().is_multiple_of(heads.len()),
            "heads have as many rows"
        );
        let (rows, out) = (acts.rows() / heads.len(), out.share());
        let block = |(part, matrix): (usize, &Packed)| {
            let panels = matrix.panels();
            tasks::chunks(0..rows).map(move |rows| Block { part, panels, rows })
        };
        let blocks: Vec<Block> = heads.iter().enumerate().flat_map(block).collect();
        tasks::run(self.threads(), &blocks, &|task| {
            let acts_rows = task.part * rows + task.rows.start..task.part * rows + task.rows.end;
            self.head_tile(&heads[task.part], acts, acts_rows, &task, &out);
        });
    }

    fn head_tile(
        &self,
        w: &Packed,
        acts: &Activations,
        rows: Range<usize>,
        task: &Task,
        out: &SharedHeads<'_>,
    ) {
        let first = task.panels.start * PANEL;
        let columns = (task.panels.end * PANEL).min(w.n()) - first;
        let pointer = out.rows.at(
            out.start(task.rows.start, task.part) + first,
            (task.rows.len() - 1) * out.row + columns,
        );
        let tile = Tile {
            w,
            acts,
            rows,
            panels: task.panels.clone(),
            out: pointer,
            ld: out.row,
            mode: Mode::Store,
            bias: None,
        };
        // SAFETY: tasks write disjoint heads, rows and columns of `out`; the range was checked by
        // `at`; the instruction set is available.
        unsafe { gemm::compute(self.isa(), &tile) }
    }
}
