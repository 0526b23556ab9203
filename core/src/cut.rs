//! The cut of a route by a template: which records go where, until a cut is full, and its SHIPs.
//!
//! It is what `routes.cutting` does with plain records; of any other it is `None`.

use crate::bytes::{hash_of, Reader};
use crate::records::{headers, put_batch, read_header, records, HEADER_BYTES};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

const TARGET_BYTES: usize = 100;
const PIECE_BYTES: usize = 150;
const PACKED_FROM: usize = 1 << 10;
const NAME_LENGTH_MAX: usize = 249;
const RECORDS_MAX: usize = 1 << 16; // of one batch: it is read again where the next cut begins in it
const PLAIN: u32 = 1 << 31;

/// A template: a text, and behind it the key (`None`) or a header, and a text, and so on.
pub struct Template {
    pub start: Vec<u8>,
    pub fields: Vec<(Option<Vec<u8>>, Vec<u8>)>,
}

/// What bounds a cut, and whose records it is of.
pub struct Bounds {
    pub shards: usize,
    pub start: i64,
    pub end: i64,
    pub limited: bool,
    pub bytes_max: usize,
    pub batch_bytes_max: usize,
    pub held_max: usize,
    pub targets_max: usize,
    pub records_max: usize,
    pub part_targets: usize,
    pub parts_max: usize,
    /// The entrance itself, which no record goes to.
    pub own: Vec<u8>,
    /// The queue that is made without settings.
    pub plain: Vec<u8>,
    /// Whether records without a key go nowhere.
    pub keyed: bool,
}

/// A stored batch: its base offset, as it is stored, and its records where they were packed.
pub struct Stored<'a> {
    pub base_offset: i64,
    pub batch: &'a [u8],
    pub unpacked: Option<&'a [u8]>,
}

impl<'a> Stored<'a> {
    fn records(&self) -> &'a [u8] {
        self.unpacked.unwrap_or_else(|| &self.batch[HEADER_BYTES..])
    }
}

struct Piece {
    batch: usize,
    body: Range<usize>,
    time_ms: i64,
    packed: bool,
}

struct Target {
    name: Vec<u8>,
    hash: u32,
    pieces: Vec<Piece>,
}

/// The records of a cut, by queue.
pub struct Gathered {
    targets: Vec<Target>,
    shards: usize,
    plain: Vec<u8>,
    batch_bytes_max: usize,
    part_targets: usize,
    /// The number of targets by shard, in as many parts as there may be.
    buckets: Vec<Vec<usize>>,
    /// The offset behind the last record that is in it; `None`: all of what there was is.
    pub through: Option<i64>,
    pub records: usize,
    pub held: usize,
}

/// Gathers what a cut holds.
pub fn gather(stored: &[Stored<'_>], template: &Template, bounds: &Bounds) -> Option<Gathered> {
    let mut made = Gathered {
        targets: Vec::new(),
        shards: bounds.shards,
        plain: bounds.plain.clone(),
        batch_bytes_max: bounds.batch_bytes_max,
        part_targets: bounds.part_targets,
        buckets: vec![vec![0; bounds.parts_max]; bounds.shards],
        through: None,
        records: 0,
        held: 0,
    };
    let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
    let (mut sizes, mut counts) = (vec![0; bounds.shards], vec![0; bounds.shards]);
    let mut name = Vec::with_capacity(NAME_LENGTH_MAX);
    let sure_bytes = bounds.batch_bytes_max.checked_sub(TARGET_BYTES)?;
    for (number, one) in stored.iter().enumerate() {
        let header = read_header(one.batch)?;
        if header.count > RECORDS_MAX || (header.codec != 0) != one.unpacked.is_some() {
            return None;
        }
        let data = one.records();
        for record in records(&header, data)? {
            let offset = one.base_offset.checked_add(record.delta)?;
            if offset < bounds.start {
                continue;
            }
            if offset >= bounds.end {
                made.through = Some(bounds.end);
                return Some(made);
            }
            let body = &data[record.body.clone()];
            fill(&mut name, template, bounds, body, &data[..record.body.end], record.headers_at)?;
            if body.len() >= sure_bytes {
                return None;
            }
            let hash = hash_of(&name);
            let (index, bucket) = (hash as usize % bounds.shards, hash as usize / bounds.shards % bounds.parts_max);
            let found = known.get(&name).copied();
            let more = body.len() + if found.is_none() { TARGET_BYTES } else { 0 };
            let full = bounds.limited
                && ((made.records > 0
                    && (sizes[index] + more > bounds.bytes_max
                        || made.held > bounds.held_max
                        || made.records >= bounds.records_max))
                    || (found.is_none()
                        && (made.buckets[index][bucket] >= bounds.part_targets
                            || counts[index] >= bounds.targets_max)));
            if full {
                made.through = Some(offset);
                return Some(made);
            }
            let target = found.unwrap_or_else(|| {
                made.buckets[index][bucket] += 1;
                counts[index] += 1;
                known.insert(name.clone(), made.targets.len());
                made.targets.push(Target { name: name.clone(), hash, pieces: Vec::new() });
                made.targets.len() - 1
            });
            let packed = header.codec != 0;
            made.targets[target].pieces.push(Piece {
                batch: number,
                body: record.body,
                time_ms: record.time_ms,
                packed,
            });
            sizes[index] += more;
            made.held += more + PIECE_BYTES;
            made.records += 1;
        }
    }
    Some(made)
}

/// Makes the name of the queue that a record goes to.
fn fill(
    name: &mut Vec<u8>,
    template: &Template,
    bounds: &Bounds,
    body: &[u8],
    data: &[u8],
    headers_at: usize,
) -> Option<()> {
    let key = Reader::new(body, 0).sized()?;
    if key.is_none() && bounds.keyed {
        return None;
    }
    name.clear();
    name.extend_from_slice(&template.start);
    for (header, behind) in &template.fields {
        let value = match header {
            None => key,
            Some(wanted) => {
                let mut last = None;
                headers(Reader::new(data, headers_at), |said, value| {
                    if said == &wanted[..] {
                        last = value;
                    }
                })?;
                last
            }
        }?;
        if value.is_empty() {
            return None;
        }
        name.extend_from_slice(value);
        name.extend_from_slice(behind);
        if name.len() > NAME_LENGTH_MAX {
            return None;
        }
    }
    let sound = name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte));
    let odd = name.starts_with(b"__") || matches!(&name[..], b"." | b"..") || *name == bounds.own;
    (sound && !odd).then_some(())
}

/// A part of a cut for one shard, as a SHIP has it behind its settings.
pub struct Part {
    pub shard: usize,
    pub part: usize,
    pub targets: usize,
    pub bytes: Vec<u8>,
}

impl Gathered {
    /// Returns the number of parts that each shard gets it in: a power of two.
    pub fn parts(&self) -> usize {
        let (mut parts, mut buckets) = (self.buckets[0].len(), self.buckets.clone());
        while parts > 1 {
            let half = parts / 2;
            for one in &mut buckets {
                for number in 0..half {
                    one[number] += one[number + half];
                }
            }
            if buckets.iter().any(|one| one[..half].iter().any(|count| *count > self.part_targets)) {
                break;
            }
            parts = half;
        }
        parts
    }

    /// Returns whether no batch of it is packed: those that have many bytes are as their source was.
    pub fn is_plain(&self) -> bool {
        self.targets.iter().all(|one| {
            let packed = one.pieces.first().is_some_and(|piece| piece.packed);
            !packed || one.pieces.iter().map(|piece| piece.body.len()).sum::<usize>() < PACKED_FROM
        })
    }

    /// Makes all parts, without empty ones; `None`: a batch is larger than the log takes.
    pub fn ships(&self, stored: &[Stored<'_>], parts: usize) -> Option<Vec<Part>> {
        let mut by_part: BTreeMap<(usize, usize), Vec<&Target>> = BTreeMap::new();
        for one in &self.targets {
            let (shard, bucket) = (one.hash as usize % self.shards, one.hash as usize / self.shards);
            by_part.entry((shard, bucket % parts)).or_default().push(one);
        }
        let mut made = Vec::with_capacity(by_part.len());
        for ((shard, part), targets) in by_part {
            let (mut batches, mut bytes) = (Vec::new(), Vec::new());
            for one in &targets {
                let bodies: Vec<(&[u8], i64)> = one
                    .pieces
                    .iter()
                    .map(|piece| (&stored[piece.batch].records()[piece.body.clone()], piece.time_ms))
                    .collect();
                let length = put_batch(&mut batches, &bodies)?;
                if length > self.batch_bytes_max {
                    return None;
                }
                let plain = if one.name == self.plain { PLAIN } else { 0 };
                bytes.push(one.name.len() as u8);
                bytes.extend_from_slice(&(u32::try_from(length).ok()? | plain).to_be_bytes());
            }
            for one in &targets {
                bytes.extend_from_slice(&one.name);
            }
            bytes.append(&mut batches);
            made.push(Part { shard, part, targets: targets.len(), bytes });
        }
        Some(made)
    }
}
