package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/completion"
)

// completionTimeout bounds how long completion waits for the API server.
const completionTimeout = 3 * time.Second

// completionSource returns what completion reads, with the flags of the command.
func (c *cli) completionSource() completion.Source {
	return completion.Source{
		GatewaySyncs: func(ctx context.Context, allNamespaces bool) []*v1alpha1.GatewaySync {
			p, err := c.connect()
			if err != nil {
				return nil
			}
			if allNamespaces {
				p.namespace = ""
			}
			ctx, cancel := context.WithTimeout(ctx, completionTimeout)
			defer cancel()
			list, err := c.list(ctx, p)
			if err != nil {
				return nil
			}
			return list
		},
		GatewaySync: func(ctx context.Context, name string) *v1alpha1.GatewaySync {
			p, err := c.connect()
			if err != nil {
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, completionTimeout)
			defer cancel()
			gs, err := p.load(ctx, name)
			if err != nil {
				return nil
			}
			return gs
		},
		Contexts: func() []string {
			config, err := c.flags.ToRawKubeConfigLoader().RawConfig()
			if err != nil {
				return nil
			}
			return slices.Sorted(maps.Keys(config.Contexts))
		},
	}
}
