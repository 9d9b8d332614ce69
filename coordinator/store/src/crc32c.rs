//! CRC-32C as RocksDB stores it, for the log files that we check ourselves.

/// The reversed polynomial of Castagnoli.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[0]` is the usual table; `TABLES[n]` is for a byte with `n` more after it, so
/// that eight bytes are taken at once.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0_u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// The CRC-32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    let (chunks, rest) = bytes.as_chunks::<8>();
    for chunk in chunks {
        let [a, b, c, d, e, f, g, h] = *chunk;
        let [w, x, y, z] = (crc ^ u32::from_le_bytes([a, b, c, d])).to_le_bytes();
        crc = 0;
        for (table, byte) in TABLES.iter().rev().zip([w, x, y, z, e, f, g, h]) {
            crc ^= table[usize::from(byte)];
        }
    }
    for byte in rest {
        crc = (crc >> 8) ^ TABLES[0][usize::from((crc as u8) ^ byte)];
    }
    !crc
}

/// A CRC as RocksDB writes it down: changed, because the CRC of bytes that contain their
/// own CRC is of little use.
pub(crate) const fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_checksum_of_rfc_3720() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
