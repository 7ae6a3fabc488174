// A command of the wheel: its main is in the library beside the others.
int STFS_MAIN(int argc, char** argv);

int main(int argc, char** argv) { return STFS_MAIN(argc, argv); }
