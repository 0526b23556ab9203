//! The records of a batch, and batches of records. Pure: whatever is odd is `None`.

use crate::bytes::{crc32c, put_uvarint, zigzag, Reader};
use std::ops::Range;

pub const HEADER_BYTES: usize = 61;
const LENGTH_FROM: usize = 12; // what a batch's length does not count
const LOG_APPEND_TIME: i16 = 0x08;
const CODEC_MASK: i16 = 0x07;
const TIME_MAX: i64 = 1 << 61;
const RECORD_BYTES_MIN: i64 = 6;

/// What is read of a batch's header.
pub struct Header {
    pub codec: i16,
    pub last_delta: i64,
    pub base_ms: i64,
    pub stamp_ms: Option<i64>,
    pub count: usize,
}

fn at<const N: usize>(data: &[u8], from: usize) -> Option<[u8; N]> {
    data.get(from..from + N)?.try_into().ok()
}

pub fn read_header(batch: &[u8]) -> Option<Header> {
    let attributes = i16::from_be_bytes(at(batch, 21)?);
    let base_ms = i64::from_be_bytes(at(batch, 27)?);
    let latest_ms = i64::from_be_bytes(at(batch, 35)?);
    let count = i32::from_be_bytes(at(batch, 57)?);
    let stamp_ms = (attributes & LOG_APPEND_TIME != 0).then_some(latest_ms);
    let (low, high) = (-TIME_MAX, TIME_MAX);
    if !(low < base_ms && base_ms < high && low < latest_ms && latest_ms < high) {
        return None;
    }
    Some(Header {
        codec: attributes & CODEC_MASK,
        last_delta: i64::from(i32::from_be_bytes(at(batch, 23)?)),
        base_ms,
        stamp_ms,
        count: usize::try_from(count).ok()?,
    })
}

/// A record: its offset delta and time, where its bytes lie from the key on, and its headers on.
pub struct Record {
    pub delta: i64,
    pub time_ms: i64,
    pub body: Range<usize>,
    pub headers_at: usize,
}

/// Returns all records of a batch, from what it unpacks to.
pub fn records(header: &Header, data: &[u8]) -> Option<Vec<Record>> {
    let mut found = Vec::with_capacity(header.count.min(data.len() / RECORD_BYTES_MIN as usize));
    let (mut reader, mut last) = (Reader::new(data, 0), -1);
    for _ in 0..header.count {
        let (length, begin) = (reader.varlong()?, reader.at);
        if length < RECORD_BYTES_MIN {
            return None;
        }
        let mut one = Reader::new(data.get(..begin.checked_add(usize::try_from(length).ok()?)?)?, begin);
        one.byte()?; // attributes
        let time_ms = one.varlong()?;
        let delta = one.varlong()?;
        if !(-TIME_MAX < time_ms && time_ms < TIME_MAX && last < delta && delta <= header.last_delta) {
            return None;
        }
        let body_at = one.at;
        one.sized()?;
        one.sized()?;
        let headers_at = one.at;
        headers(one, |_, _| ())?;
        let end = begin + length as usize;
        let time_ms = header.stamp_ms.unwrap_or(header.base_ms + time_ms);
        found.push(Record { delta, time_ms, body: body_at..end, headers_at });
        (reader.at, last) = (end, delta);
    }
    reader.is_at_end().then_some(found)
}

/// Tells of each header of a record, which end where its bytes do.
pub fn headers<'a>(mut one: Reader<'a>, mut tell: impl FnMut(&'a [u8], Option<&'a [u8]>)) -> Option<()> {
    for _ in 0..u32::try_from(one.varlong()?).ok()? {
        let name = one.sized()??;
        tell(name, one.sized()?);
    }
    one.is_at_end().then_some(())
}

/// Returns where each of so many records has its headers, from their number on.
pub fn header_ranges(count: usize, data: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut found = Vec::with_capacity(count.min(data.len() / RECORD_BYTES_MIN as usize));
    let mut reader = Reader::new(data, 0);
    for _ in 0..count {
        let (length, begin) = (reader.varlong()?, reader.at);
        if length < RECORD_BYTES_MIN {
            return None;
        }
        let end = begin.checked_add(usize::try_from(length).ok()?)?;
        let mut one = Reader::new(data.get(..end)?, begin + 1);
        one.varlong()?;
        one.varlong()?;
        one.sized()?;
        one.sized()?;
        if one.is_at_end() {
            return None;
        }
        found.push(one.at..end);
        reader.at = end;
    }
    reader.is_at_end().then_some(found)
}

/// Puts a batch of records that are there from their keys on, not packed; returns its length.
pub fn put_batch(out: &mut Vec<u8>, bodies: &[(&[u8], i64)]) -> Option<usize> {
    let (begin, first_ms) = (out.len(), bodies.first()?.1);
    let mut last_ms = first_ms;
    out.resize(begin + HEADER_BYTES, 0);
    let mut head = Vec::with_capacity(24);
    for (delta, (body, time_ms)) in bodies.iter().enumerate() {
        last_ms = last_ms.max(*time_ms);
        head.clear();
        head.push(0);
        put_uvarint(&mut head, zigzag(time_ms - first_ms));
        put_uvarint(&mut head, zigzag(delta as i64));
        put_uvarint(out, 2 * (head.len() + body.len()) as u64);
        out.extend_from_slice(&head);
        out.extend_from_slice(body);
    }
    let length = out.len() - begin;
    let count = i32::try_from(bodies.len()).ok()?;
    let batch = &mut out[begin..];
    let mut put = |from: usize, data: &[u8]| batch[from..from + data.len()].copy_from_slice(data);
    put(8, &i32::try_from(length - LENGTH_FROM).ok()?.to_be_bytes());
    put(16, &[2]); // the magic
    put(23, &(count - 1).to_be_bytes());
    put(27, &first_ms.to_be_bytes());
    put(35, &last_ms.to_be_bytes());
    put(43, &[0xFF; 14]); // of no producer
    put(57, &count.to_be_bytes());
    let crc = crc32c(&batch[21..], 0);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    Some(length)
}
