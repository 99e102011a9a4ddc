package wire

// service is a program of a git server.
type service int

const (
	uploadPack  service = iota // git-upload-pack, which serves fetches
	receivePack                // git-receive-pack, which accepts pushes
)

// String returns the name of the program.
func (s service) String() string {
	if s == receivePack {
		return "git-receive-pack"
	}
	return "git-upload-pack"
}

// request is how messages name a request to the service.
func (s service) request() string {
	if s == receivePack {
		return "push"
	}
	return "fetch"
}

// advertisementType is the media type of the list of refs.
func (s service) advertisementType() string { return "application/x-" + s.String() + "-advertisement" }

// requestType is the media type of a request.
func (s service) requestType() string { return "application/x-" + s.String() + "-request" }

// resultType is the media type of the answer to a request.
func (s service) resultType() string { return "application/x-" + s.String() + "-result" }
