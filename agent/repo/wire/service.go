package wire

// service is a program on a git server.
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

// request returns the word for a request to the service in messages.
func (s service) request() string {
	if s == receivePack {
		return "push"
	}
	return "fetch"
}

// advertisementType returns the media type of the advertisement.
func (s service) advertisementType() string { return "application/x-" + s.String() + "-advertisement" }

// requestType returns the media type of a request.
func (s service) requestType() string { return "application/x-" + s.String() + "-request" }

// resultType returns the media type of the answer to a request.
func (s service) resultType() string { return "application/x-" + s.String() + "-result" }
