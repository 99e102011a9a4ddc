package fleet

import (
	"fmt"
	"io"
	"time"
)

// The project's goals for a fleet.
const (
	// perSync is the number of requests that a follower may make per sync, in a fleet of any size: its report and, if
	// the sync takes more than a second, a report before it that the sync is running.
	perSync = 2
	// flat is the factor by which the bytes of a follower may grow from the smallest to the largest fleet: those of two
	// reports.
	flat = 2
	// thousand is how long 1,000 agents may take for a commit of one file.
	thousand = time.Minute
	// handedOver is how long a fleet may be without a lead after its lead ends in good order.
	handedOver = 2 * time.Second
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
		looks := medianSync(r, r.looks)
		add(looks <= 1.1, what+"one poll of git per GatewaySync and sync", "%.2f", looks)
		fetches := medianSync(r, func(w window) float64 { return per(int64(w.git.UploadPacks), r.size.total()) })
		add(fetches <= 1, what+"one fetch per agent and sync", "%.2f", fetches)
		sum := r.idle.sum(allAgents)
		most := r.size.sites * r.idle.allowedConfirms()
		add(sum.requests[confirmRequest] <= most, what+"a status is written every two minutes while nothing happens", "%d in %.0f s, %d are allowed", sum.requests[confirmRequest], r.idle.duration.Seconds(), most)
		add(r.idle.busyRequests() == 0, what+"no other request while nothing happens, but watches and the lead's lock", "%d in %.0f s", r.idle.busyRequests(), r.idle.duration.Seconds())
		if took := r.handover.verified; r.size.sites == 1 && took > 0 {
			add(took <= handedOver, what+fmt.Sprintf("another one leads within %.0f s of the end of the lead", handedOver.Seconds()), "%.2f s", took.Seconds())
		}
		if r.size.total() >= 1000 {
			add(sec <= thousand.Seconds(), what+fmt.Sprintf("all verified within %.0f s", thousand.Seconds()), "%.1f s", sec)
		}
	}
	return found
}
