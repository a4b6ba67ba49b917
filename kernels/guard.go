package kernels

import _ "embed"

// Guard is the prologue of rewritten kernels for every architecture, in JSON. guard/generate makes it from guard/guard.cu;
// guard/guard.h has the record that it reads.
//
//go:embed guard/guard.json
var Guard []byte
