package fleet

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// medianSync returns the median of a figure over the syncs of a size.
func medianSync[T cmp.Ordered](r result, figure func(window) T) T {
	var all []T
	for _, w := range r.syncs {
		all = append(all, figure(w))
	}
	return median(all)
}

// median returns the median.
func median[T cmp.Ordered](list []T) (m T) {
	if len(list) == 0 {
		return m
	}
	return slices.Sorted(slices.Values(list))[len(list)/2]
}

// per returns n per agent of a group, or 0 for an empty group.
func per(n int64, of int) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// asked counts requests, those of the lock separately, without the requests that open a watch.
func asked(c counts) (requests, lock int) {
	for what, n := range c.requests {
		switch {
		case strings.HasPrefix(what, watching+" "):
		case lockRequests[what]:
			lock += n
		default:
			requests += n
		}
	}
	return requests, lock
}

// requests returns the requests per agent of a group in a window, without watches and the lock.
func requests(of selector) func(window) float64 {
	return func(w window) float64 {
		n, _ := asked(w.sum(of))
		return per(int64(n), w.number(of))
	}
}

// writes returns the status writes per GatewaySync.
func writes(w window) float64 {
	return per(int64(w.sum(allAgents).requests["patch gatewaysyncs/status"]), len(w.leads))
}

// kilobytes returns the traffic per agent in a window, minus the idle traffic.
func (r result) kilobytes(of selector) func(window) float64 {
	return func(w window) float64 {
		rate := r.idle.kilobytes(of) / r.idle.duration.Seconds()
		return max(w.kilobytes(of)-rate*w.duration.Seconds(), 0)
	}
}

func (w window) kilobytes(of selector) float64 {
	s := w.sum(of)
	return per(s.in+s.out, w.number(of)) / 1000
}

// polls returns the ref advertisements per GatewaySync, without those of fetches, each of which has one.
func (r result) polls(w window) float64 {
	return per(int64(w.git.Advertisements-w.git.UploadPacks), r.size.sites)
}

func write(out io.Writer, all []result, r rollout) error {
	fmt.Fprintf(out, "# Fleet\n\n%s/%s, %d cores, %s. Agents, API server, etcd and git share them.\n", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	fmt.Fprintf(out, "Figures of syncs are medians of %d. A sync begins with the annotation stoker.io/requested-at.\n", len(all[0].syncs))
	for _, section := range []func(io.Writer, []result) error{syncs, detail, idle} {
		if err := section(out, all); err != nil {
			return err
		}
	}
	if err := r.write(out); err != nil {
		return err
	}
	return goals(out, all, r)
}

// table begins a Markdown table.
func table(out io.Writer, columns ...string) *tabwriter.Writer {
	t := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintf(t, "| %s\t|\n|%s\n", strings.Join(columns, "\t| "), strings.Repeat(" ---\t|", len(columns)))
	return t
}

func syncs(out io.Writer, all []result) error {
	fmt.Fprint(out, "\n## A commit of one file\n\n")
	t := table(out, "agents", "first sync, s", "all verified, s", "from – to", "requests per follower", "of a lead", "kB per follower", "of a lead",
		"status writes", "git polls", "fetches per agent")
	for _, r := range all {
		took := func(w window) float64 { return w.verified.Seconds() }
		low, high := r.syncs[0].verified, r.syncs[0].verified
		for _, w := range r.syncs {
			low, high = min(low, w.verified), max(high, w.verified)
		}
		fmt.Fprintf(t, "| %s\t| %.1f\t| %.2f\t| %.2f – %.2f\t| %.2f\t| %.1f\t| %.1f\t| %.1f\t| %.1f\t| %.1f\t| %.2f\t|\n", r.size, r.first.verified.Seconds(),
			medianSync(r, took), low.Seconds(), high.Seconds(), medianSync(r, requests(followers)), medianSync(r, requests(leaders)),
			medianSync(r, r.kilobytes(followers)), medianSync(r, r.kilobytes(leaders)), medianSync(r, writes), medianSync(r, r.polls),
			medianSync(r, func(w window) float64 { return per(int64(w.git.UploadPacks), r.size.total()) }))
	}
	return t.Flush()
}

// detail breaks down the requests.
func detail(out io.Writer, all []result) error {
	fmt.Fprint(out, "\n## Requests and watch events of an agent, by what they are about\n\nThe last sync, and its lock; first sync: all that an agent asks from its start on.\n\n")
	columns := []string{"what"}
	for _, r := range all {
		columns = append(columns, r.size.String()+": first", "follower", "lead")
	}
	t := table(out, columns...)
	names := map[string]bool{}
	sums := make([][3]counts, len(all))
	sizes := make([][3]int, len(all))
	for i, r := range all {
		last := r.syncs[len(r.syncs)-1]
		sums[i] = [3]counts{r.first.sum(allAgents), last.sum(followers), last.sum(leaders)}
		sizes[i] = [3]int{r.size.total(), last.number(followers), last.number(leaders)}
		for _, c := range sums[i] {
			for _, m := range []map[string]int{c.requests, named(c.events, "event of "), named(c.refused, "refused: ")} {
				for what := range m {
					names[what] = true
				}
			}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(t, "| %s", what)
		for i := range all {
			for j, c := range sums[i] {
				n := c.requests[what] + named(c.events, "event of ")[what] + named(c.refused, "refused: ")[what]
				fmt.Fprintf(t, "\t| %s", figure(per(int64(n), sizes[i][j])))
			}
		}
		fmt.Fprint(t, "\t|\n")
	}
	return t.Flush()
}

func named(m map[string]int, prefix string) map[string]int {
	to := make(map[string]int, len(m))
	for k, n := range m {
		to[prefix+k] = n
	}
	return to
}

func figure(n float64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", n)
}

// perMinute returns an idle count per minute and agent of a group.
func (r result) perMinute(n int64, of int) float64 {
	return per(n, of) * float64(time.Minute) / float64(r.idle.duration)
}

func idle(out io.Writer, all []result) error {
	fmt.Fprint(out, "\n## A minute in which nothing happens\n\n")
	t := table(out, "agents", "requests per follower", "of a lead", "its lock", "status writes", "kB per follower", "of a lead", "CPU per agent, ms",
		"MiB per agent", "goroutines per agent")
	for _, r := range all {
		w := r.idle
		follower, stray := asked(w.sum(followers))
		lead, lock := asked(w.sum(leaders))
		fmt.Fprintf(t, "| %s\t| %.2f\t| %.2f\t| %.1f\t| %.2f\t| %.1f\t| %.1f\t| %.1f\t| %.2f\t| %d\t|\n", r.size,
			r.perMinute(int64(follower+stray), w.number(followers)), r.perMinute(int64(lead), w.number(leaders)), r.perMinute(int64(lock), w.number(leaders)),
			r.perMinute(int64(w.sum(allAgents).requests["patch gatewaysyncs/status"]), r.size.sites),
			w.kilobytes(followers)*60/w.duration.Seconds(), w.kilobytes(leaders)*60/w.duration.Seconds(),
			r.perMinute(w.cpu.Milliseconds(), r.size.total()),
			float64(r.memory)/(1<<20), r.goroutines)
	}
	return t.Flush()
}

// The project's goals for a fleet.
const (
	// perSync is the number of requests that a follower may make per sync, in a fleet of any size: its report and, if
	// the sync takes more than a second, a report before it that the sync is running.
	perSync = 2
	// flat is the factor by which the bytes of a follower may grow from the smallest to the largest fleet: two reports
	// instead of one.
	flat = 2
	// thousand is how long 1,000 agents may take for a commit of one file.
	thousand = time.Minute
)

type goal struct {
	what, measured string
	met            bool
}

// goals compares the figures with the project's goals. It omits what was not measured.
func goals(out io.Writer, all []result, r rollout) error {
	fmt.Fprint(out, "\n## Goals\n\n")
	t := table(out, "goal", "measured", "")
	for _, g := range append(judge(all), r.goals()...) {
		verdict := "met"
		if !g.met {
			verdict = "**missed**"
		}
		fmt.Fprintf(t, "| %s\t| %s\t| %s\t|\n", g.what, g.measured, verdict)
	}
	return t.Flush()
}

func judge(all []result) []goal {
	var found []goal
	add := func(met bool, what, measured string, a ...any) {
		found = append(found, goal{what, fmt.Sprintf(measured, a...), met})
	}
	var fleets []result // with one GatewaySync and followers, from small to large
	for _, r := range all {
		if r.size.sites == 1 && r.size.agents > 1 {
			fleets = append(fleets, r)
		}
	}
	if n := len(fleets); n > 1 {
		small, large := fleets[0], fleets[n-1]
		what := fmt.Sprintf("%s agents against %s, ", large.size, small.size)
		a, b := medianSync(small, small.kilobytes(followers)), medianSync(large, large.kilobytes(followers))
		add(b <= flat*a, what+fmt.Sprintf("bytes per follower and sync: at most %d ×", flat), "%.1f kB against %.1f kB", b, a)
	}
	for _, r := range all {
		what := r.size.String() + " agents: "
		if r.size.agents > 1 {
			n := medianSync(r, requests(followers))
			add(n <= perSync, what+fmt.Sprintf("at most %d requests per follower and sync", perSync), "%.2f", n)
		}
		sec := medianSync(r, func(w window) float64 { return w.verified.Seconds() })
		n := medianSync(r, writes)
		add(n <= sec+2, what+"a sync writes the status at most once a second and once at each end", "%.1f in %.1f s", n, sec)
		polls := medianSync(r, r.polls)
		add(polls <= 1.1, what+"one poll of git per GatewaySync and sync", "%.2f", polls)
		fetches := medianSync(r, func(w window) float64 { return per(int64(w.git.UploadPacks), r.size.total()) })
		add(fetches <= 1, what+"one fetch per agent and sync", "%.2f", fetches)
		sum := r.idle.sum(allAgents)
		most := r.size.sites * r.idle.allowedConfirms()
		add(sum.requests[confirmRequest] <= most, what+"a status is written every two minutes while nothing happens", "%d in %.0f s, %d are allowed", sum.requests[confirmRequest], r.idle.duration.Seconds(), most)
		add(r.idle.busyRequests() == 0, what+"no other request while nothing happens, but watches and the lead's lock", "%d in %.0f s", r.idle.busyRequests(), r.idle.duration.Seconds())
		if r.size.total() >= 1000 {
			add(sec <= thousand.Seconds(), what+fmt.Sprintf("all verified within %.0f s", thousand.Seconds()), "%.1f s", sec)
		}
	}
	return found
}
