package cgo

import _ "unsafe" // for go:linkname

//go:cgo_import_static x_cgo_take_thread
//go:linkname x_cgo_take_thread x_cgo_take_thread
//go:linkname _cgo_take_thread _cgo_take_thread
var x_cgo_take_thread byte
var _cgo_take_thread = &x_cgo_take_thread

//go:cgo_import_static x_cgo_memory_waits
//go:linkname x_cgo_memory_waits x_cgo_memory_waits
//go:linkname _cgo_memory_waits _cgo_memory_waits
var x_cgo_memory_waits byte
var _cgo_memory_waits = &x_cgo_memory_waits
