// Prints the sum of the values of each floating tensor of a checkpoint.
//
//	CGO_LDFLAGS="$(pkg-config --libs stfs)" CGO_CFLAGS="$(pkg-config --cflags stfs)" go build sum.go
//	./sum model.safetensors dequantize=bf16
package main

// #include <stdlib.h>
// #include <stfs.h>
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

func fail() {
	fmt.Fprintln(os.Stderr, C.GoString(C.stfs_last_error()))
	os.Exit(1)
}

// words makes an array of C strings. They live as long as the program.
func words(list []string) **C.char {
	all := (**C.char)(C.malloc(C.size_t(len(list)+1) * C.size_t(unsafe.Sizeof(uintptr(0)))))
	for i, word := range list {
		unsafe.Slice(all, len(list))[i] = C.CString(word)
	}
	return all
}

func sum(checkpoint *C.stfs_checkpoint, number int, tensor *C.stfs_tensor, as *C.char) {
	part := C.stfs_part{tensor: C.size_t(number), as: as}
	part.size = C.size_t(unsafe.Sizeof(part))
	measure := C.stfs_part_info{}
	measure.size = C.size_t(unsafe.Sizeof(measure))
	if C.stfs_get_part_info(checkpoint, &part, &measure) != C.STFS_OK {
		return // integers
	}
	values := C.malloc(C.size_t(measure.bytes) + 1)
	defer C.free(values)
	if C.stfs_read(checkpoint, &part, 0, values, C.size_t(measure.bytes)) != C.STFS_OK {
		fail()
	}
	all := 0.0
	for _, value := range unsafe.Slice((*float32)(values), int(measure.elements)) {
		all += float64(value)
	}
	fmt.Printf("%-12.6g %s %s\n", all, C.GoString(tensor.dtype), C.GoString(tensor.name))
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: sum SOURCE [KEY=VALUE...]")
		os.Exit(2)
	}
	var checkpoint *C.stfs_checkpoint
	table := C.stfs_table{}
	table.size = C.size_t(unsafe.Sizeof(table))
	options := os.Args[2:]
	if C.stfs_open(words(os.Args[1:2]), 1, words(options), C.size_t(len(options)), nil, &checkpoint) != C.STFS_OK ||
		C.stfs_tensors(checkpoint, &table) != C.STFS_OK {
		fail()
	}
	defer C.stfs_close(checkpoint)
	as := C.CString("f32")
	defer C.free(unsafe.Pointer(as))
	for i := 0; i < int(table.count); i++ {
		entry := unsafe.Add(table.first, i*int(table.stride))
		sum(checkpoint, i, (*C.stfs_tensor)(entry), as)
	}
}
