// Prints the sum of the values of each floating tensor of a checkpoint.
//
//   rustc sum.rs -L DIRECTORY_OF_LIBSTFS
//   ./sum model.safetensors dequantize=bf16
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::mem::size_of;
use std::ptr::{null, null_mut};

#[repr(C)]
struct Tensor {
    name: *const c_char,
    name_bytes: usize,
    dtype: *const c_char,
    // The other members of stfs_tensor are not used. stfs_table.stride is the distance between entries.
}

#[repr(C)]
struct Table {
    size: usize,
    count: usize,
    stride: usize,
    first: *const c_void,
    names: *const c_char,
    names_bytes: usize,
}

#[repr(C)]
struct Part {
    size: usize,
    tensor: usize,
    slice: *const c_char,
    as_type: *const c_char,
}

#[repr(C)]
struct Measure {
    size: usize,
    bytes: u64,
    elements: u64,
    dtype: *const c_char,
    rank: usize,
    shape: [u64; 64],
}

#[link(name = "stfs")]
extern "C" {
    fn stfs_last_error() -> *const c_char;
    fn stfs_open(sources: *const *const c_char, count: usize, options: *const *const c_char, option_count: usize,
                 extra: *const c_void, checkpoint: *mut *mut c_void) -> c_int;
    fn stfs_close(checkpoint: *mut c_void);
    fn stfs_tensors(checkpoint: *const c_void, table: *mut Table) -> c_int;
    fn stfs_get_part_info(checkpoint: *const c_void, part: *const Part, measure: *mut Measure) -> c_int;
    fn stfs_read(checkpoint: *mut c_void, part: *const Part, offset: u64, buffer: *mut c_void, bytes: usize) -> c_int;
}

fn check(status: c_int) {
    if status != 0 {
        eprintln!("{}", unsafe { CStr::from_ptr(stfs_last_error()) }.to_string_lossy());
        std::process::exit(1);
    }
}

fn main() {
    let words: Vec<CString> = std::env::args().skip(1).map(|word| CString::new(word).unwrap()).collect();
    let pointers: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).collect();
    if pointers.is_empty() {
        eprintln!("usage: sum SOURCE [KEY=VALUE...]");
        std::process::exit(2);
    }
    let as_type = CString::new("f32").unwrap();
    let mut checkpoint = null_mut();
    let mut table = Table { size: size_of::<Table>(), count: 0, stride: 0, first: null(), names: null(), names_bytes: 0 };
    unsafe {
        check(stfs_open(pointers.as_ptr(), 1, pointers[1..].as_ptr(), pointers.len() - 1, null(), &mut checkpoint));
        check(stfs_tensors(checkpoint, &mut table));
        for number in 0..table.count {
            let tensor = &*(table.first.cast::<u8>().add(number * table.stride) as *const Tensor);
            let part = Part { size: size_of::<Part>(), tensor: number, slice: null(), as_type: as_type.as_ptr() };
            let mut measure = Measure { size: size_of::<Measure>(), bytes: 0, elements: 0, dtype: null(), rank: 0, shape: [0; 64] };
            if stfs_get_part_info(checkpoint, &part, &mut measure) != 0 {
                continue; // integers
            }
            let mut values = vec![0f32; measure.elements as usize];
            check(stfs_read(checkpoint, &part, 0, values.as_mut_ptr().cast(), measure.bytes as usize));
            let all: f64 = values.iter().map(|&value| f64::from(value)).sum();
            let name = std::slice::from_raw_parts(tensor.name.cast::<u8>(), tensor.name_bytes);
            println!("{:<12} {} {}", all, CStr::from_ptr(tensor.dtype).to_string_lossy(), String::from_utf8_lossy(name));
        }
        stfs_close(checkpoint);
    }
}
