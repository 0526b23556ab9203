//! Numbers, checksums and hashes as Kafka's batches and kproxy's shards have them.

const fn tables() -> [[u32; 256]; 8] {
    let mut found = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
            bit += 1;
        }
        found[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = found[table - 1][byte];
            found[table][byte] = before >> 8 ^ found[0][(before & 0xFF) as usize];
            byte += 1;
        }
        table += 1;
    }
    found
}

static TABLES: [[u32; 256]; 8] = tables();

/// Returns the CRC-32C of bytes behind those that gave `before`.
pub fn crc32c(data: &[u8], before: u32) -> u32 {
    let mut crc = !before;
    let mut words = data.chunks_exact(8);
    for word in &mut words {
        let low = crc ^ u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        crc = TABLES[7][(low & 0xFF) as usize]
            ^ TABLES[6][(low >> 8 & 0xFF) as usize]
            ^ TABLES[5][(low >> 16 & 0xFF) as usize]
            ^ TABLES[4][(low >> 24) as usize]
            ^ TABLES[3][word[4] as usize]
            ^ TABLES[2][word[5] as usize]
            ^ TABLES[1][word[6] as usize]
            ^ TABLES[0][word[7] as usize];
    }
    for byte in words.remainder() {
        crc = crc >> 8 ^ TABLES[0][((crc ^ u32::from(*byte)) & 0xFF) as usize];
    }
    !crc
}

const SEED: u32 = 0x9747_B28C;

/// Returns the hash of a queue's name that decides where it belongs (murmur3, 32 bits).
pub fn hash_of(name: &[u8]) -> u32 {
    let mut hash = SEED;
    let mut words = name.chunks_exact(4);
    for word in &mut words {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        hash = (hash ^ mixed(word)).rotate_left(13).wrapping_mul(5).wrapping_add(0xE654_6B64);
    }
    let mut last = 0;
    for (number, byte) in words.remainder().iter().enumerate() {
        last |= u32::from(*byte) << (8 * number);
    }
    hash ^= mixed(last) ^ name.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85EB_CA6B);
    hash = (hash ^ hash >> 13).wrapping_mul(0xC2B2_AE35);
    hash ^ hash >> 16
}

fn mixed(word: u32) -> u32 {
    word.wrapping_mul(0xCC9E_2D51).rotate_left(15).wrapping_mul(0x1B87_3593)
}

/// A place in bytes. What is not there, or is odd, is `None`: then Python looks.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    data: &'a [u8],
    pub at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8], at: usize) -> Self {
        Reader { data, at }
    }

    pub fn byte(&mut self) -> Option<u8> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Reads a zigzag varint of at most 63 bits.
    pub fn varlong(&mut self) -> Option<i64> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some((value >> 1) as i64 ^ -((value & 1) as i64));
            }
            shift += 7;
            if shift > 56 {
                return None;
            }
        }
    }

    /// Reads what a length is in front of; `Some(None)`: null.
    pub fn sized(&mut self) -> Option<Option<&'a [u8]>> {
        match self.varlong()? {
            -1 => Some(None),
            size => Some(Some(self.take(usize::try_from(size).ok()?)?)),
        }
    }

    pub fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(size)?;
        let found = self.data.get(self.at..end)?;
        self.at = end;
        Some(found)
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.data.len()
    }
}

/// Writes an unsigned varint.
pub fn put_uvarint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns a number as zigzag has it.
pub fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}
