class Workbench:
    pass
