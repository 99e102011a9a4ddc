package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/test/bench/cgroup"
	"stoker.io/stoker/test/bench/repository"
	"stoker.io/stoker/test/gitserver"
)

// programs are what the bench builds.
type programs struct{ agent, nosync string }

// benchSize measures one repository.
func benchSize(ctx context.Context, s settings, size size, programs programs, work string, progress *log.Logger, all results) (err error) {
	began := time.Now()
	generated, err := repository.Generate(ctx, s.cache, size.Size)
	if err != nil {
		return err
	}
	progress.Printf("%s: %d files in %s (%s)", size.Name, size.Files, generated, time.Since(began).Round(time.Second))
	remote, err := repository.NewRemote(ctx, generated, filepath.Join(work, "remote"), gitserver.Options{})
	if err != nil {
		return err
	}
	b := newBench(size, remote, work, progress)
	defer func() {
		for _, c := range b.contestants {
			err = errors.Join(err, c.close())
		}
		err = errors.Join(err, remote.Server.Close())
	}()
	b.agent = programs.agent
	invite := b.addContestants
	if size.memory > 0 {
		invite = b.addConfined
	}
	if err := invite(ctx, programs); err != nil {
		return err
	}
	return b.run(ctx, s, all)
}

func newBench(size size, remote *repository.Remote, work string, progress *log.Logger) *bench {
	return &bench{size: size, work: work, remote: remote, commits: map[string]string{}, next: map[string]int{}, log: progress}
}

// addContestants adds the contestants of a size without a memory limit.
func (b *bench) addContestants(ctx context.Context, programs programs) error {
	url := b.remote.URL()
	once, err := newAgent(b.agent, filepath.Join(b.work, "once"), url)
	if err != nil {
		return err
	}
	stays, err := newAgent(b.agent, filepath.Join(b.work, "resident"), url)
	if err != nil {
		return err
	}
	ignores, err := newAgent(b.agent, filepath.Join(b.work, "unchecked"), url)
	if err == nil {
		err = os.WriteFile(ignores.file(), fmt.Appendf(nil, gatewaySync+"  validation:\n    references: ignore\n", url), 0o644)
	}
	if err != nil {
		return err
	}
	b.contestants = []contestant{once, &agentResident{agentOnce: stays, remote: b.remote}, &agentUnchecked{&agentResident{agentOnce: ignores, remote: b.remote}}}
	if err := b.addGuaranteed(); err != nil {
		return err
	}
	if err := b.addUnsynced(ctx, programs.nosync); err != nil {
		return err
	}
	if b.hasRsync() {
		b.contestants = append(b.contestants, b.checkout())
	}
	b.contestants = append(b.contestants, b.fetchOnly())
	return nil
}

// chartRequest is the CPU request of the chart's agentResources. The bench limits only the CPU of a Guaranteed pod's agent, not its memory.
var chartRequest = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m")}}

// addGuaranteed adds the agent with the CPU that the injector gives it in a Guaranteed pod, if CPU can be limited
// here.
func (b *bench) addGuaranteed() error {
	limits := inject.Guaranteed(chartRequest, resource.MustParse("4")).Limits
	room, err := cgroup.NewCPULimit(limits.Cpu().MilliValue())
	if err != nil {
		b.log.Printf("an agent of a Guaranteed pod is not measured: no container with a limit on CPU can be made here, which needs root and a control group tree that may be written: %v", err)
		return nil
	}
	agent, err := newAgent(b.agent, filepath.Join(b.work, "guaranteed"), b.remote.URL(), room.Wrap()...)
	b.contestants = append(b.contestants, &agentGuaranteed{agent, room})
	return err
}

// addUnsynced adds the agent without durability, if the system supports it.
func (b *bench) addUnsynced(ctx context.Context, nosync string) error {
	if out, err := exec.CommandContext(ctx, nosync, "true").CombinedOutput(); err != nil {
		b.log.Printf("what durability costs is not measured: %s", out)
		return ctx.Err()
	}
	agent, err := newAgent(b.agent, filepath.Join(b.work, "unsynced"), b.remote.URL(), nosync)
	b.contestants = append(b.contestants, &agentUnsynced{agent})
	return err
}

// addConfined adds contestants that run in a container with a memory limit each, or none if containers are not available.
func (b *bench) addConfined(context.Context, programs) error {
	for _, who := range []string{once, rsync, fetch} {
		if who == rsync && !b.hasRsync() {
			continue
		}
		room, err := cgroup.NewMemoryLimit(b.size.memory)
		if err != nil {
			b.log.Printf("%s is not measured: no container with a memory limit can be made here, which takes root and a control group tree that may be written: %v", b.size.Name, err)
			return nil
		}
		c := &confined{container: room}
		b.contestants = append(b.contestants, c)
		switch who {
		case rsync:
			peer := b.checkout()
			peer.wrap = room.Wrap()
			c.contestant = peer
		case fetch:
			floor := b.fetchOnly()
			floor.wrap = room.Wrap()
			c.contestant = floor
		default:
			if c.contestant, err = newAgent(b.agent, filepath.Join(b.work, "once"), b.remote.URL(), room.Wrap()...); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) hasRsync() bool {
	_, err := exec.LookPath("rsync")
	if err != nil {
		b.log.Print("rsync is not installed: git + checkout + rsync -c takes no part (install rsync and run again)")
	}
	return err == nil
}

func (b *bench) checkout() *checkout {
	return &checkout{dir: filepath.Join(b.work, "checkout"), live: filepath.Join(b.work, "live"), url: b.remote.URL()}
}

func (b *bench) fetchOnly() *fetchOnly {
	return &fetchOnly{dir: filepath.Join(b.work, "fetch"), url: b.remote.URL()}
}
