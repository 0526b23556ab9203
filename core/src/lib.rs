//! kproxy's native lane: kernels that Python calls on threads, without the interpreter's lock.
//!
//! Each takes plain cases alone, and returns `None` for any other: then Python does the work. What
//! it returns is what Python would. Nothing here refuses anything, or knows an error code.
#![forbid(unsafe_code)]

mod bytes;
mod cut;
mod records;

use cut::{Bounds, Gathered, Part, Stored, Template};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashMap;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs a kernel without the interpreter's lock. A panic is an exception, and Python does the work.
fn kernel<T: Send>(py: Python<'_>, work: impl Send + FnOnce() -> Option<T>) -> PyResult<Option<T>> {
    let done = py.detach(|| catch_unwind(AssertUnwindSafe(work)).map_err(|_| ()));
    done.map_err(|()| PyRuntimeError::new_err("a kernel has panicked"))
}

/// The version of what both languages agree on: `kproxy.native` takes no other.
const VERSION: u32 = 1;

type Batch = (i64, PyBackedBytes, Option<PyBackedBytes>);
type Ship<'py> = (usize, usize, usize, Bound<'py, PyBytes>);
type Fields = Vec<(Option<Vec<u8>>, Vec<u8>)>;
type Asked = (usize, i64, i64, bool, bool, [usize; 7]);

/// A cut, and the batches that its records lie in.
#[pyclass(frozen)]
struct Cut {
    gathered: Gathered,
    stored: Vec<Batch>,
}

fn views(stored: &[Batch]) -> Vec<Stored<'_>> {
    stored
        .iter()
        .map(|(base_offset, batch, unpacked)| Stored {
            base_offset: *base_offset,
            batch,
            unpacked: unpacked.as_deref(),
        })
        .collect()
}

#[pymethods]
impl Cut {
    #[getter]
    fn through(&self) -> Option<i64> {
        self.gathered.through
    }

    #[getter]
    fn records(&self) -> usize {
        self.gathered.records
    }

    #[getter]
    fn held(&self) -> usize {
        self.gathered.held
    }

    #[getter]
    fn parts(&self) -> usize {
        self.gathered.parts()
    }

    /// Return (shard, part, number of targets, what a SHIP has behind its settings) of each part.
    fn ships<'py>(&self, py: Python<'py>, parts: usize) -> PyResult<Option<Vec<Ship<'py>>>> {
        let made = kernel(py, || self.gathered.ships(&views(&self.stored), parts))?;
        let ship = |one: &Part| (one.shard, one.part, one.targets, PyBytes::new(py, &one.bytes));
        Ok(made.map(|made| made.iter().map(ship).collect()))
    }
}

/// Gather what a cut holds, as `Cutter` does. `stored`: (base offset, batch, records if packed).
#[pyfunction]
fn gather(
    py: Python<'_>,
    stored: Vec<Batch>,
    template: (Vec<u8>, Fields),
    bounds: Asked,
    own: Vec<u8>,
    plain: Vec<u8>,
) -> PyResult<Option<Cut>> {
    let (start, fields) = template;
    let (shards, from, end, limited, keyed, most) = bounds;
    let [bytes_max, batch_bytes_max, held_max, targets_max, records_max, part_targets, parts_max] = most;
    if shards == 0 || parts_max == 0 {
        return Ok(None);
    }
    let bounds = Bounds {
        shards,
        start: from,
        end,
        limited,
        bytes_max,
        batch_bytes_max,
        held_max,
        targets_max,
        records_max,
        part_targets,
        parts_max,
        own,
        plain,
        keyed,
    };
    let template = Template { start, fields };
    let gathered = kernel(py, || cut::gather(&views(&stored), &template, &bounds).filter(Gathered::is_plain))?;
    Ok(gathered.map(|gathered| Cut { gathered, stored }))
}

/// Return what each of so many records has from the number of its headers on: equal ones once.
#[pyfunction]
fn header_bytes<'py>(py: Python<'py>, count: i64, data: PyBackedBytes) -> PyResult<Option<Bound<'py, PyList>>> {
    let Some(found) = kernel(py, || records::header_ranges(usize::try_from(count).ok()?, &data))? else {
        return Ok(None);
    };
    let mut known: HashMap<&[u8], Bound<'py, PyBytes>> = HashMap::new();
    let mut last: Option<(&[u8], Bound<'py, PyBytes>)> = None;
    let mut made = Vec::with_capacity(found.len());
    for range in found {
        let some = &data[range];
        let one = match &last {
            Some((said, one)) if *said == some => one.clone(),
            _ => known.entry(some).or_insert_with(|| PyBytes::new(py, some)).clone(),
        };
        made.push(one.clone());
        last = Some((some, one));
    }
    PyList::new(py, made).map(Some)
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", VERSION)?;
    module.add_class::<Cut>()?;
    module.add_function(wrap_pyfunction!(gather, module)?)?;
    module.add_function(wrap_pyfunction!(header_bytes, module)?)
}
