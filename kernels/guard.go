package kernels

import _ "embed"

// Guard is what guard/generate made of guard/guard.cu: the prologue of rewritten kernels, for every
// architecture, in JSON. guard/guard.h has the record that it reads.
//
//go:embed guard/guard.json
var Guard []byte
