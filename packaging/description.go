package main

// These texts stand in every kind of package.

const (
	homepage    = "https://github.com/gpreempt/gpreempt"
	license     = "Apache-2.0"
	maintainer  = "The gpreempt authors <" + homepage + ">"
	summary     = "preempts best-effort CUDA programs for latency-critical ones"
	description = "Runs best-effort GPU work (training, batch inference) beside a\n" +
		"latency-critical service on one NVIDIA GPU, with unmodified programs and\n" +
		"the stock driver. libgpreempt.so is preloaded into CUDA programs;\n" +
		"gpreempt run does that, gpreempt doctor says what works."

	brokerName        = "gpreemptd"
	brokerSummary     = "lets programs of several users share GPUs under gpreempt"
	brokerDescription = "A broker: programs of several users and containers share NVIDIA GPUs by it,\n" +
		"without trusting each other. Its policy says who may be latency-critical.\n" +
		"systemctl enable --now gpreemptd.socket starts it when a program asks."

	// policyPlace is the policy that the broker reads; an administrator's changes in it stay.
	policyPlace  = "/etc/gpreempt/policy.toml"
	policySource = "share/doc/gpreemptd/policy.toml"
)
