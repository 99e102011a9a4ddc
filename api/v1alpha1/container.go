package v1alpha1

const (
	// AgentContainer is the name of the agent's container in a gateway's pod, put there by the injector or by hand.
	AgentContainer = "stoker-agent"
	// AgentHealthPort is the name of its port for probes and /state.
	AgentHealthPort = "stoker-health"
)
